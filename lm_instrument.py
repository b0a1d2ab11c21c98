"""A language model as instrumenter: it reads a program and answers with the same program, milestone prints inserted.

    proposals = LMInstrumenter(reference).propose(programs)      # one text a program; None where it does not fit the context
    instrument(program, token, proposal)                         # instrument.py accepts it, or uses the syntax tree

The model is the frozen copy of the starting policy that also serves as KL reference; it is never trained. It decodes
greedily, so that a program's proposal depends on the program alone, and each text is answered once. It reads and writes
a placeholder, never the token of a run: neither its prompts nor its answers hold anything that a program must not know.
What it writes is not trusted: programs may talk to it in their comments.
"""

import hashlib

from instrument import MILESTONES, PLACEHOLDER, marker
from model import Policy
from prompts import encode_prompt, extract_program
from sampler import generate
from steps import parse

REMEMBERED = 10_000  # answers, of some kB each
SPARE_TOK = 128  # of an answer: indentation, the closing fence, the end of the text
OPENING = "```python\n"  # the answer begins with the program, without a plan

ENDS = dict(zip(MILESTONES, (
    "the last import", "the last file of data that is read before the training", "the features", "the model is constructed",
    "the model is fitted", "the predictions for the submission", "the submission is written",
), strict=True))  # fmt: skip

EXAMPLE = """import pandas as pd
from sklearn.linear_model import Ridge
train = pd.read_csv("train.csv")
test = pd.read_csv("test.csv")
X = train[["a", "b"]].fillna(0)  # two columns
model = Ridge()
model.fit(X, train["y"])
test["y"] = model.predict(test[["a", "b"]].fillna(0))
test[["id", "y"]].to_csv("submission.csv", index=False)
"""
EXAMPLE_ENDS = dict(zip((1, 3, 4, 5, 6, 7, 8), MILESTONES, strict=True))  # line of the example: what ends with it


def build_instrumenter_prompt(program: str) -> str:
    """Write the request: the seven statements, one example, the program."""
    prints = {milestone: marker(milestone, PLACEHOLDER) for milestone in MILESTONES}
    lines = EXAMPLE.splitlines()
    answer = [text for i, line in enumerate(lines) for text in (line, prints.get(EXAMPLE_ENDS.get(i))) if text]
    return "\n".join([
        "Insert statements that report progress into a Python program. Each goes on a line of its own, right after the "
        "last line of its step:",
        *(f"after {ENDS[milestone]}: {text}" for milestone, text in prints.items()), "",
        "Leave out the statement of a step that the program does not do. Never insert one into a loop, never one twice. "
        "Change nothing else: repeat every other line of the program as it is, mistakes and comments included.", "",
        "Program:", "```python", *lines, "```", "Answer:", "```python", *answer, "```", "",
        "Program:", "```python", program.strip("\n"), "```", "Answer with the whole program in one Python code block.",
    ])  # fmt: skip


class LMInstrumenter:
    """Asks a frozen policy for instrumented programs, many at once."""

    def __init__(self, policy: Policy, *, slots: int = 64, context_tok: int | None = None):
        """policy: never trained, and in eval mode; slots: programs in the model at once; context_tok: tokens that it reads.

        Raises ValueError for a policy that could be trained.
        """
        if policy.training or any(p.requires_grad for p in policy.parameters()):
            raise ValueError("the instrumenter must be frozen and in eval mode: give it model.frozen_copy(policy)")
        self.policy, self.slots = policy, slots
        self.context_tok = context_tok or getattr(policy.lm.config, "max_position_embeddings", 1 << 30)
        self.opening = self._encode(OPENING)
        self.empty_tok = len(self._prompt(""))
        self.added_tok = len(self._encode("\n".join(marker(milestone, PLACEHOLDER) for milestone in MILESTONES))) + SPARE_TOK
        self.answers: dict[str, str | None] = {}  # by the hash of the program, oldest first

    def propose(self, programs: list[str]) -> list[str | None]:
        """Return the model's version of each program, with markers of PLACEHOLDER.

        None for one that is too long or does not compile, and where the answer holds no program.
        """
        names = [hashlib.sha256(program.encode(errors="surrogatepass")).hexdigest() for program in programs]
        new = {name: program for name, program in zip(names, programs, strict=True) if name not in self.answers}
        answers = dict(zip(new, self._ask(list(new.values())), strict=True))
        proposals = [answers.get(name, self.answers.get(name)) for name in names]
        self.answers |= answers
        for name in list(self.answers)[: max(0, len(self.answers) - REMEMBERED)]:
            del self.answers[name]
        return proposals

    def _ask(self, programs: list[str]) -> list[str | None]:
        """Return the model's answers to programs, read and written together; None for those that it is not asked about."""
        prompts, limits = {}, {}  # by the program's place in the list
        for i, program in enumerate(programs):
            if parse(program) is not None:
                prompt = self._prompt(program)
                limit = len(prompt) - self.empty_tok + self.added_tok  # the longest prompt also has the longest answer
                if len(prompt) + limit <= self.context_tok:
                    prompts[i], limits[i] = prompt, limit
        answers: list[str | None] = [None] * len(programs)
        if prompts:
            n, room = len(prompts), max(limits.values())
            made = generate(self.policy, list(prompts.values()), list(range(n)), [0] * n, max_new_tok=room, temperature=0,
                            slots=self.slots)  # fmt: skip
            for i, generation in zip(prompts, made, strict=True):
                ids = generation.ids[: limits[i]]  # a longer program beside it changes nothing
                answers[i] = extract_program(OPENING + self.policy.tokenizer.decode(ids, skip_special_tokens=True))
        return answers

    def _prompt(self, program: str) -> list[int]:
        return encode_prompt(self.policy.tokenizer, build_instrumenter_prompt(program)) + self.opening

    def _encode(self, text: str) -> list[int]:
        return self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
