"""Collection: prompts -> sampled responses -> instrumented programs in sandboxes -> rewards -> tensors for the learner.

Everything random about an episode (its kind, the choice of the earlier program it shows, its tokens, its program's seed) is
drawn from the run's seed and the episode's global index alone, so that neither the number of ranks nor a resume changes it.
stream.py decides which episodes make up a batch.

Letters: B episodes, T tokens.
"""

import hashlib
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace

import torch

import ppo
from checkpoint import UsageError
from instrument import MILESTONES, instrument, marker, new_token, strip_markers
from lm_instrument import LMInstrumenter
from model import Policy
from prompts import Attempt, build_prompt, encode_prompt, extract_program
from reward import Reward, compute_reward
from sampler import Generation, generate
from sandbox import Execution, InfraError, Sandbox
from tasks import Task

KEPT_CHARS = 4000  # of the head and of the tail of each output stream, in episodes
NO_PROGRAM = Execution(status="error", exit_code=None, stdout="", stderr="the response holds no program", duration_s=1e-3)


@dataclass(frozen=True)
class Episode:
    """One prompt, response, run and reward. `record()` is JSON-able."""

    index: int  # global sample index
    task: str
    kind: str  # scratch | improve
    prompt_ids: list[int]
    response_ids: list[int]
    behaviour_logprobs: list[float]
    finish_reason: str
    policy_version: int
    response: str
    program: str | None
    execution: Execution
    reward: Reward
    instrumented_by: str = "ast"  # ast | lm | none: whose milestone prints ran

    def record(self) -> dict:
        """Return what <run>/episodes.jsonl keeps."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("execution", "reward")}
        return {**fields, "execution": asdict(self.execution), "reward": asdict(self.reward)}


# -------------------------------------------------------------------------------------------------------------- collection


@dataclass
class ImprovementPool:
    """Earlier programs of one task that improvement prompts may show: the best ones and the latest ones."""

    best_size: int = 4
    recent_size: int = 4
    best: list[tuple[float, Attempt]] = field(default_factory=list)  # (reward, attempt), best first
    recent: list[Attempt] = field(default_factory=list)

    def add(self, episodes: list[Episode]) -> None:
        """Take in a batch, in the order of its global indices."""
        for episode in sorted(episodes, key=lambda e: e.index):
            if episode.program is None:
                continue
            score = None if episode.reward.score is None else episode.reward.total
            attempt = Attempt(episode.program, tail_of_output(episode.execution, episode.reward), score)
            if attempt.score is not None and attempt.program not in [a.program for _, a in self.best]:
                self.best = sorted([*self.best, (episode.reward.total, attempt)], key=lambda x: -x[0])[: self.best_size]
            self.recent = [*self.recent, attempt][-self.recent_size :]

    def attempts(self) -> list[Attempt]:
        return [a for _, a in self.best] + self.recent

    def draw(self, rng: random.Random) -> Attempt | None:
        attempts = self.attempts()
        return rng.choice(attempts) if attempts else None

    def state(self) -> dict:
        return {"best": [[r, asdict(a)] for r, a in self.best], "recent": [asdict(a) for a in self.recent]}

    def load_state(self, state: dict) -> None:
        self.best = [(r, Attempt(**a)) for r, a in state["best"]]
        self.recent = [Attempt(**a) for a in state["recent"]]


def tail_of_output(execution: Execution, reward: Reward) -> str:
    """Return what an engineer would look at first: why the program failed, else the last lines it printed.

    Paths of the run's own directory and object addresses are left out: they would make a resumed run differ.
    """
    lines = [line for line in execution.stdout.splitlines() if line.strip()]
    text = reward.reason if reward.score is None else "\n".join(lines[-3:])
    return re.sub(r"0x[0-9a-f]{6,}", "0x", re.sub(r"/\S{0,200}/run-\d+", ".", text))


def as_logged(execution: Execution, token: str) -> Execution:
    """Return the execution as episodes keep it: without our markers, the submission, and the middle of long output."""
    stderr = execution.stderr
    for milestone in MILESTONES:  # a traceback quotes the instrumented line
        stderr = stderr.replace("; " + marker(milestone, token), "")
    texts = {"stdout": strip_markers(execution.stdout, token), "stderr": stderr}
    cut = {name: t if len(t) <= 2 * KEPT_CHARS else t[:KEPT_CHARS] + "\n...\n" + t[-KEPT_CHARS:] for name, t in texts.items()}
    return replace(execution, submission=None, **cut)


@dataclass
class Run:
    """One sampled response whose program waits, runs or has run."""

    index: int
    kind: str
    prompt_ids: list[int]
    generation: Generation
    response: str
    program: str | None
    policy_version: int
    proposal: str | None = None  # the language model's instrumented version, with a placeholder for the token
    instrumented_by: str = "ast"
    future: Future | None = None
    started_at: float = 0.0  # monotonic clock
    ended_at: float = math.inf

    def state(self) -> dict:
        """Return what is needed to run it again after a resume."""
        names = ("index", "kind", "prompt_ids", "response", "program", "policy_version", "proposal")
        return {**{name: getattr(self, name) for name in names}, "generation": asdict(self.generation)}

    @classmethod
    def from_state(cls, state: dict) -> "Run":
        return cls(**{**state, "generation": Generation(**state["generation"])})


@dataclass
class Collector:
    """Turn a policy into episodes. Owns no process: the sandbox is the caller's. Raises UsageError for data that it closes."""

    tasks: Sequence[Task]  # each prompt is of one of them, drawn
    sandbox: Sandbox
    seed: int | str
    secret: bytes  # milestone markers are drawn from it, so that no program can print them
    pools: dict[str, ImprovementPool]  # by task
    temperature: float
    max_prompt_tok: int
    max_new_tok: int
    brief: bool  # brief prompts, for the tiny policy
    improve_frac: float
    memory_gib: float = 4.0  # named in the prompt; the sandbox enforces its own
    sample_batch: int = 64  # rows sampled together: memory and speed, never the programs
    reward_options: dict = field(default_factory=dict)
    instrumenter: LMInstrumenter | None = None  # without one the syntax tree instruments
    milestone_prints: bool = True  # without them programs run as written, and none reaches a milestone
    rewrite: Callable[[str, int], str] | None = None  # (prompt, index) -> prompt: robust.py perturbs it

    def __post_init__(self):
        for task in self.tasks:
            if reason := self.sandbox.why_closed(task.public_dir):  # else every program would fail, and the policy pay for it
                raise UsageError(f"the data of {task.name}: {reason}")

    def collect(self, policy: Policy, indices: Iterable[int], policy_version: int = 0) -> list[Episode]:
        """Generate, instrument, run and reward one episode per global sample index; infra errors are left out."""
        runs = self.sample(policy, indices, policy_version)
        for run in runs:
            self.start(run)
        return self.finish(runs)

    def sample(self, policy: Policy, indices: Iterable[int], policy_version: int) -> list[Run]:
        """Write prompts, sample their responses, and let the language model, if one instruments, propose where to print."""
        indices = list(indices)
        prompts = [self._prompt(policy.tokenizer, index) for index in indices]
        responses = self._generate(policy, [ids for _, ids in prompts], indices)
        texts = [policy.tokenizer.decode(_without_stop(r), skip_special_tokens=True) for r in responses]
        runs = [
            Run(index, kind, prompt_ids, generation, text, extract_program(text), policy_version)
            for index, (kind, prompt_ids), generation, text in zip(indices, prompts, responses, texts, strict=True)
        ]
        if self.instrumenter is not None:
            written = [run for run in runs if run.program is not None]
            for run, proposal in zip(written, self.instrumenter.propose([run.program for run in written]), strict=True):
                run.proposal = proposal
        return runs

    def start(self, run: Run) -> None:
        """Instrument the program and queue it in the sandbox; a response without a program has ended at once."""
        run.started_at = time.monotonic()
        if run.program is None:
            run.future, run.ended_at = Future(), run.started_at
            run.future.set_result(NO_PROGRAM)
            return
        instrumented, run.instrumented_by = run.program, "none"
        if self.milestone_prints:
            instrumented, accepted = instrument(run.program, self._token(run.index), run.proposal)
            run.instrumented_by = "lm" if accepted else "ast"
        task, seed = self.task_of(run.index), self.sample_seed(run.index)
        run.future = self.sandbox.submit(instrumented, task.public_dir, time_limit_s=task.time_limit_s, seed=seed)
        run.future.add_done_callback(lambda _: setattr(run, "ended_at", time.monotonic()))

    def finish(self, runs: list[Run]) -> list[Episode]:
        """Wait for the runs and reward them; those that failed by our own fault are left out, with a line on stderr."""
        episodes = []
        for run in runs:
            task, token, execution = self.task_of(run.index), self._token(run.index), run.future.result()
            try:
                reward = compute_reward(task, run.program or "", execution, token, **self.reward_options)
            except InfraError as error:
                print(f"left out of the batch: program {run.index}: {error}", file=sys.stderr)
                continue
            episodes.append(
                Episode(
                    index=run.index,
                    task=task.name,
                    kind=run.kind,
                    prompt_ids=run.prompt_ids,
                    response_ids=run.generation.ids,
                    behaviour_logprobs=run.generation.logprobs,
                    finish_reason=run.generation.finish_reason,
                    policy_version=run.policy_version,
                    response=run.response,
                    program=run.program,
                    execution=as_logged(execution, token),
                    reward=reward,
                    instrumented_by=run.instrumented_by,
                )
            )
        return episodes

    def _prompt(self, tokenizer, index: int) -> tuple[str, list[int]]:
        task, rng = self.task_of(index), random.Random(f"{self.seed}/prompt/{index}")
        earlier = self.pools[task.name].draw(rng) if rng.random() < self.improve_frac else None
        for kind, attempt in (("improve", earlier), ("scratch", None)):
            if kind == "improve" and attempt is None:
                continue
            prompt = build_prompt(task, attempt, brief=self.brief, memory_gib=self.memory_gib)
            ids = encode_prompt(tokenizer, self.rewrite(prompt, index) if self.rewrite else prompt)
            if len(ids) <= self.max_prompt_tok:  # a program too long to show gives way to a prompt from scratch
                return kind, ids
        raise ValueError(f"the prompt of {task.name} has {len(ids)} tokens: raise --max-prompt-tok {self.max_prompt_tok}")

    def _generate(self, policy: Policy, prompts: list[list[int]], indices: list[int]) -> list[Generation]:
        distinct = sorted(set(map(tuple, prompts)))
        earlier = [a.program for task in self.tasks for a in self.pools[task.name].attempts()]
        return generate(
            policy, [list(ids) for ids in distinct], [distinct.index(tuple(ids)) for ids in prompts],
            [self.sample_seed(index) for index in indices],
            max_new_tok=self.max_new_tok, temperature=self.temperature, slots=self.sample_batch,
            similar=[policy.tokenizer(program, add_special_tokens=False)["input_ids"] for program in earlier],
        )  # fmt: skip

    def task_of(self, index: int) -> Task:
        return self.tasks[random.Random(f"{self.seed}/task/{index}").randrange(len(self.tasks))]

    def sample_seed(self, index: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/sample/{index}".encode()).digest()[:4], "big")

    def _token(self, index: int) -> str:
        return new_token(f"{self.secret.hex()}/{self.seed}/marker/{index}")


def _without_stop(generation: Generation) -> list[int]:
    return generation.ids[:-1] if generation.finish_reason == "stop" else generation.ids


# ------------------------------------------------------------------------------------------------------------ to tensors


@torch.no_grad()
def to_experience(
    episodes: list[Episode], policy: Policy, reference: Policy, *, temperature: float, micro_batch_tok: int,
    policy_version: int = 0, inverse_inclusion: list[float] | None = None, task_names: Sequence[str] = (),
) -> ppo.Experience:  # fmt: skip
    """Lay episodes out as right-padded (B, T) tensors, with the values of `policy` and log-probabilities of `reference`.

    Episodes that an older policy than policy_version sampled, and all in bf16, also get the log-probabilities of `policy`.
    Masks come from the lengths that were sampled, never from token ids: a pad may equal the end of sequence.
    """
    device = policy.device
    width = max((len(e.prompt_ids) + len(e.response_ids) for e in episodes), default=1)  # a rank may have no episode
    tokens = torch.zeros(len(episodes), width, dtype=torch.long)  # (B, T)
    action_mask = torch.zeros(len(episodes), width, dtype=torch.bool)  # (B, T)
    behaviour_logprobs = torch.zeros(len(episodes), width)  # (B, T)
    rewards = torch.zeros(len(episodes), width)  # (B, T)
    for row, e in enumerate(episodes):
        start, end = len(e.prompt_ids), len(e.prompt_ids) + len(e.response_ids)
        tokens[row, :end] = torch.tensor(e.prompt_ids + e.response_ids)
        action_mask[row, start:end] = True
        behaviour_logprobs[row, start:end] = torch.tensor(e.behaviour_logprobs)
        rewards[row, end - 1] = e.reward.total  # on the last generated token
    tokens, action_mask = tokens.to(device), action_mask.to(device)
    values = torch.zeros(tokens.shape, device=device)  # (B, T) reward units
    reference_logprobs = torch.zeros(tokens.shape, device=device)  # (B, T)
    proximal_logprobs = behaviour_logprobs = behaviour_logprobs.to(device)
    older = [e.policy_version < policy_version or policy.bf16 for e in episodes]  # in bf16 the sampler rounds otherwise
    stale = torch.tensor(older, dtype=torch.bool, device=device)  # (B,)
    current_logprobs = torch.zeros(tokens.shape, device=device)  # (B, T)
    lengths = [len(e.prompt_ids) + len(e.response_ids) for e in episodes]
    for rows in ppo.micro_batches(lengths, micro_batch_tok):
        end = max(lengths[row] for row in rows)
        ids, mask = tokens[rows, :end], action_mask[rows, :end]
        current_logprobs[rows, :end], _, normalised = ppo.evaluate(policy, ids, mask, temperature)
        values[rows, :end] = (policy.value_mean + policy.value_std * normalised) * mask
        reference_logprobs[rows, :end] = ppo.evaluate(reference, ids, mask, temperature)[0]
    if stale.any():  # fresh rows keep what was stored at sampling, bit for bit
        proximal_logprobs = torch.where(stale[:, None], current_logprobs, behaviour_logprobs)  # (B, T)
    task_index = torch.tensor([[*task_names, e.task].index(e.task) for e in episodes], dtype=torch.long, device=device)  # (B,)
    improve = torch.tensor([e.kind == "improve" for e in episodes], dtype=torch.long, device=device)  # (B,)
    return ppo.Experience(
        tokens=tokens, action_mask=action_mask, behaviour_logprobs=behaviour_logprobs, proximal_logprobs=proximal_logprobs,
        reference_logprobs=reference_logprobs, values=values, rewards=rewards.to(device),
        durations=torch.tensor([e.execution.duration_s for e in episodes], dtype=torch.float32, device=device),
        task_index=task_index, group_index=2 * task_index + improve,
        failed=torch.tensor([e.reward.score is None for e in episodes], dtype=torch.bool, device=device),
        inverse_inclusion=torch.tensor(inverse_inclusion or [1.0] * len(episodes), device=device),
    )  # fmt: skip
