"""Our sampler against transformers' generate, in one run.

    python bench/generate.py [--model tiny|smollm2|both] [--repeats 5]      a table, then one line of JSON

Random weights in the shape of the model: what is written does not matter here, and no end is ever sampled, so that both write
the same number of tokens. `shared`: all rows have one prompt. `ragged`: each has its own, half as long to full length.
Both sample by temperature from the whole distribution, in fp32, with a cache, and return the log-probability of each token.
The two take turns; the ratio is that of the medians. `bound`: tokens a second if the matrix products of the decoding steps were
all there is to do, no prompt, no attention; at one row that is the time to read the weights once a token.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from decoder import build_decoder
from model import Policy, build_tiny
from sampler import generate

# prompt and response in tokens: as long as ours are
SIZES = {"tiny": (300, 120), "smollm2": (400, 100)}


class NoEnd:
    """What a policy needs of a tokenizer: its size, and no token that ends a response."""

    bos_token_id = eos_token_id = pad_token_id = None

    def __len__(self) -> int:
        return 2700  # the tiny policy's for one task


def build(name: str) -> Policy:
    torch.manual_seed(0)
    if name == "tiny":
        return build_tiny(NoEnd(), 0)
    lm = LlamaForCausalLM(LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                                      num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
                                      rope_theta=100000.0, tie_word_embeddings=True, eos_token_id=None))  # fmt: skip
    return Policy(lm, NoEnd())


@torch.inference_mode()
def theirs(policy: Policy, prompts: list[list[int]], new_tok: int) -> None:
    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])  # (B, P), left-padded
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    settings = GenerationConfig(do_sample=True, temperature=0.7, top_k=0, max_new_tokens=new_tok, eos_token_id=None,
                                pad_token_id=0, return_dict_in_generate=True, output_scores=True)  # fmt: skip
    out = policy.lm.generate(tokens, attention_mask=mask, generation_config=settings)
    logprobs = policy.lm.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    assert logprobs.shape == (len(prompts), new_tok)


def ours(policy: Policy, prompts: list[list[int]], new_tok: int) -> None:
    distinct = sorted(set(map(tuple, prompts)))
    rows = [distinct.index(tuple(ids)) for ids in prompts]
    made = generate(policy, [list(ids) for ids in distinct], rows, list(range(len(rows))), max_new_tok=new_tok, temperature=0.7)
    assert all(len(g.ids) == new_tok for g in made)


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
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows = []
    print(f"{'model':8} {'prompts':7} {'B':>3} {'ours tok/s':>11} {'generate tok/s':>15} {'ratio':>6} {'bound tok/s':>12}")
    for name in ("tiny", "smollm2") if args.model == "both" else (args.model,):
        policy, (prompt_tok, new_tok) = build(name), SIZES[name]
        random = torch.Generator().manual_seed(0)
        for kind, n in [("shared", 1), ("shared", 8), ("shared", 32), ("ragged", 8), ("ragged", 32)]:
            lengths = [prompt_tok - (prompt_tok // 2 * i // n if kind == "ragged" else 0) for i in range(n)]
            all_ids = torch.randint(policy.lm.config.vocab_size, (n, prompt_tok), generator=random).tolist()
            prompts = [all_ids[i if kind == "ragged" else 0][:length] for i, length in enumerate(lengths)]
            seconds = {ours: [], theirs: []}
            for turn in range(args.repeats + 1):  # the first warms up
                for sampler in seconds:
                    started = time.perf_counter()
                    sampler(policy, prompts, new_tok)
                    if turn or args.repeats == 1:
                        seconds[sampler].append(time.perf_counter() - started)
            speeds = [n * new_tok / statistics.median(times) for times in seconds.values()]
            limit = bound(policy, n)
            print(f"{name:8} {kind:7} {n:3} {speeds[0]:11.0f} {speeds[1]:15.0f} {speeds[0] / speeds[1]:6.2f} {limit:12.0f}",
                  flush=True)  # fmt: skip
            rows.append({"name": f"{name}/{kind}/{n}", "ours": speeds[0], "peer": speeds[1], "ratio": speeds[0] / speeds[1],
                         "bound": limit, "unit": "tokens/s", "prompt_tok": prompt_tok, "new_tok": new_tok})  # fmt: skip
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    print(json.dumps({"bench": "generate", "rows": rows, "machine": machine}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
