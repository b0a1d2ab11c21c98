"""Our sampler against transformers' generate, in one run.

    python bench/generate.py [--model tiny|smollm2|both] [--repeats 5]      a table, then one line of JSON

The policy is the warm start for random-pizza, as train.py samples from it (made first, if it is not at hand: minutes, smollm2
20). `shared`: all rows have the prompt from scratch. `ragged`: each its own, to improve a program that is half to all there.
Both sample by temperature from the whole distribution, in fp32, with a cache, and return the log-probability of each token;
up to NEW_TOK tokens a row, counted up to its end. The two take turns; the ratio is that of the medians. Ours drafts from eight
programs that the policy wrote before, as in training from the second step on (the pool of earlier programs).

--weights random: in the shape of the model, random prompts, no end: nothing can be drafted, all speed is that of the forward.
`bound` is then tokens a second if the matrix products of the decoding steps were all there is to do, one token a row at a time,
no prompt, no attention; at one row that is the time to read the weights once a token. With drafts ours may be above it.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from config import Config, resolve
from decoder import build_decoder
from model import Policy, build_tiny, reads_brief_prompts
from prompts import Attempt, build_prompt, encode_prompt, extract_program
from sampler import generate
from train import load_run_tasks, load_start

NEW_TOK, TEMPERATURE = 120, 0.7
RANDOM_PROMPT_TOK = {"tiny": 300, "smollm2": 400}  # as long as ours are


class NoEnd:
    """What a policy needs of a tokenizer: its size, and no token that ends a response."""

    bos_token_id = eos_token_id = pad_token_id = None

    def __len__(self) -> int:
        return 2700  # the tiny policy's for one task


def build_random(name: str) -> Policy:
    torch.manual_seed(0)
    if name == "tiny":
        return build_tiny(NoEnd(), 0)
    lm = LlamaForCausalLM(LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                                      num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
                                      rope_theta=100000.0, tie_word_embeddings=True, eos_token_id=None))  # fmt: skip
    return Policy(lm, NoEnd())


def random_prompts(policy: Policy, prompt_tok: int, kind: str, n: int) -> list[list[int]]:
    lengths = [prompt_tok - (prompt_tok // 2 * i // n if kind == "ragged" else 0) for i in range(n)]
    ids = torch.randint(policy.lm.config.vocab_size, (n, prompt_tok), generator=torch.Generator().manual_seed(n)).tolist()
    return [ids[i if kind == "ragged" else 0][:length] for i, length in enumerate(lengths)]


class Trained:
    """A warm-started policy, prompts of its task, and eight programs of its own to draft from and to improve."""

    def __init__(self, name: str):
        with tempfile.TemporaryDirectory() as folder:
            config = resolve(Config(task="random-pizza", model=name, run_dir=folder))
            self.tasks = load_run_tasks(config, Path(folder), "reward")
            self.policy = load_start(config, self.tasks)
        self.brief = reads_brief_prompts(config.model)
        scratch, seeds = self.prompt(None), range(10**6, 10**6 + 8)
        made = generate(self.policy, [scratch], [0] * 8, seeds, max_new_tok=config.max_new_tok, temperature=TEMPERATURE)
        self.written = [g.ids for g in made]
        responses = [self.policy.tokenizer.decode(ids, skip_special_tokens=True) for ids in self.written]
        self.programs = [extract_program(text) or text for text in responses]

    def prompt(self, program: str | None) -> list[int]:
        earlier = None if program is None else Attempt(program, "", None)
        return encode_prompt(self.policy.tokenizer, build_prompt(self.tasks[0], earlier, brief=self.brief))

    def prompts(self, kind: str, n: int) -> list[list[int]]:
        if kind == "shared":
            return [self.prompt(None)] * n
        lines = [self.programs[i % 8].splitlines() for i in range(n)]
        return [self.prompt("\n".join(part[: len(part) // 2 + len(part) * i // (2 * n)])) for i, part in enumerate(lines)]


@torch.inference_mode()
def theirs(policy: Policy, prompts: list[list[int]]) -> int:
    """Return the number of tokens sampled, each row up to its end."""
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])  # (B, P), left-padded
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    settings = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        pad_token_id=0,
        max_new_tokens=NEW_TOK,
        eos_token_id=policy.stop_ids or None,
        output_scores=True,
        return_dict_in_generate=True,
    )
    out = policy.lm.generate(tokens, attention_mask=mask, generation_config=settings)
    policy.lm.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    stops = torch.isin(out.sequences[:, width:], torch.tensor(policy.stop_ids))  # (B, N)
    return int((stops.long().cumsum(1) - stops.long() == 0).sum())


def ours(policy: Policy, prompts: list[list[int]], similar: list[list[int]], seed: int) -> int:
    """Return the number of tokens sampled."""
    distinct = sorted(set(map(tuple, prompts)))
    rows, seeds = [distinct.index(tuple(ids)) for ids in prompts], range(seed, seed + len(prompts))
    made = generate(policy, [list(ids) for ids in distinct], rows, seeds, max_new_tok=NEW_TOK, temperature=TEMPERATURE,
                    similar=similar)  # fmt: skip
    return sum(len(g.ids) for g in made)


@torch.inference_mode()
def bound(policy: Policy, n: int) -> float:
    """Return tokens a second of the matrix products alone, for n rows; the median of five."""
    decoder, seconds = build_decoder(policy), []
    products = [part for layer in decoder.layers for part in layer if isinstance(part, tuple)] + [decoder.head]
    inputs = {weight.shape[1]: torch.randn(n, weight.shape[1]) for weight, _ in products}
    for _ in range(6):
        started = time.perf_counter()
        for weight, bias in products:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight, bias)
        seconds.append(time.perf_counter() - started)
    return n / statistics.median(seconds[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("tiny", "smollm2", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of each; one more warms up")
    parser.add_argument("--weights", choices=("trained", "random"), default="trained")
    args = parser.parse_args()
    rows = []
    print(f"{'model':8} {'prompts':7} {'B':>3} {'ours tok/s':>11} {'generate tok/s':>15} {'ratio':>6} {'bound tok/s':>12}")
    for name in ("tiny", "smollm2") if args.model == "both" else (args.model,):
        trained = Trained(name) if args.weights == "trained" else None
        policy, similar = (trained.policy, trained.written) if trained else (build_random(name), [])
        for kind, n in [("shared", 1), ("shared", 8), ("shared", 32), ("ragged", 8), ("ragged", 32)]:
            prompts = trained.prompts(kind, n) if trained else random_prompts(policy, RANDOM_PROMPT_TOK[name], kind, n)
            speeds = {"ours": [], "generate": []}  # tokens a second
            for turn in range(args.repeats + 1):
                torch.manual_seed(turn)
                for sampler in speeds:
                    started = time.perf_counter()
                    sampled = ours(policy, prompts, similar, 100 * turn) if sampler == "ours" else theirs(policy, prompts)
                    if turn:  # the first warms up
                        speeds[sampler].append(sampled / (time.perf_counter() - started))
            fast, slow, limit = *map(statistics.median, speeds.values()), bound(policy, n)
            print(f"{name:8} {kind:7} {n:3} {fast:11.0f} {slow:15.0f} {fast / slow:6.2f} {limit:12.0f}", flush=True)
            rows.append({"name": f"{name}/{kind}/{n}", "ours": fast, "peer": slow, "ratio": fast / slow, "bound": limit,
                         "unit": "tokens/s", "weights": args.weights, "new_tok": NEW_TOK})  # fmt: skip
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(json.dumps({"bench": "generate", "rows": rows, "repeats": args.repeats, "machine": machine}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
