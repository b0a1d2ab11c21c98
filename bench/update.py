"""A PPO update in numbers: tokens a second, padding, peak memory against the arithmetic of memory.py.

    python bench/update.py [--model tiny|smollm2|DIR] [train.py's flags]      a table, then one line of JSON

Random weights in the shape of the model (DIR: a folder with its config.json), random tokens; lengths as in a real batch: half
the prompts short, half with an earlier program of any length, responses from half as long to full length. `sorted` is what
train.py does: micro-batches of like lengths. `arrival`: as many rows in the order they came. tokens/s counts real tokens of
prompts and responses, once through scoring (policy and reference) and once through the update.
"""

import json
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from generate import NoEnd
from transformers import AutoModelForCausalLM

import lora
import memory
import ppo
from config import parse_args, run_main
from model import Policy, frozen_copy
from train import TrainerState, build_optimizer, prepare, rss_mib, update

REPEATS = 3


def peak_mib(reset: bool = False) -> float:
    """Return the largest memory since the last reset, MiB: of the GPU, or resident memory of this process."""
    if torch.cuda.is_available():
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2**20
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def make_experience(config, policy: Policy, reference) -> ppo.Experience:
    """Score a made-up batch as rollout.to_experience does."""
    rng = random.Random(0)
    lengths = []
    for i in range(config.batch_size):
        prompt = round(config.max_prompt_tok * (0.25 if i % 2 else rng.uniform(0.4, 1.0)))
        lengths.append((prompt, prompt + round(config.max_new_tok * rng.uniform(0.5, 1.0))))
    width = max(end for _, end in lengths)
    device, shape = policy.device, (config.batch_size, width)
    tokens = torch.randint(policy.lm.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(device)  # (B, T)
    place = torch.arange(width)[None]  # (1, T)
    starts, ends = torch.tensor(lengths).T[..., None]  # (B, 1) each
    mask = ((place >= starts) & (place < ends)).to(device)  # (B, T)
    values, logprobs, reference_logprobs = (torch.zeros(shape, device=device) for _ in range(3))
    with torch.no_grad():
        for rows in ppo.micro_batches([end for _, end in lengths], config.micro_batch_tok):
            end = max(lengths[row][1] for row in rows)
            part = (tokens[rows, :end], mask[rows, :end], config.temperature)
            logprobs[rows, :end], _, values[rows, :end] = ppo.evaluate(policy, *part)
            reference_logprobs[rows, :end] = ppo.evaluate(reference, *part)[0]
    rewards = torch.zeros(shape)
    rewards[torch.arange(len(lengths)), ends[:, 0] - 1] = torch.tensor([rng.choice([-10.0, rng.random()]) for _ in lengths])
    return ppo.Experience(
        tokens=tokens, action_mask=mask, behaviour_logprobs=logprobs, reference_logprobs=reference_logprobs, values=values,
        rewards=rewards.to(device), durations=torch.ones(len(lengths), device=device), failed=rewards.sum(1).to(device) < -5,
        task_index=torch.zeros(len(lengths), dtype=torch.long, device=device),
    )  # fmt: skip


def padding(ends: list[int], groups: list[list[int]]) -> float:
    """Return the share of the cells of the micro-batches that hold no token."""
    return 1 - sum(ends) / sum(len(rows) * max(ends[row] for row in rows) for rows in groups)


def in_order(ends: list[int], budget: int) -> list[list[int]]:
    """Group rows in the order they came, at most `budget` cells each."""
    groups = [[]]
    for row in range(len(ends)):
        if groups[-1] and (len(groups[-1]) + 1) * max(ends[i] for i in [*groups[-1], row]) > budget:
            groups.append([])
        groups[-1].append(row)
    return groups


def main(argv: list[str]) -> int:
    config, _, _ = parse_args(argv)
    shape = memory.model_config(config.model)
    torch.manual_seed(0)
    before = rss_mib() if not torch.cuda.is_available() else 0.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = Policy(AutoModelForCausalLM.from_config(shape), NoEnd()).to(device)
    if config.lora_rank:
        lora.add_adapter(start.lm, config.lora_rank, config.seed)
        policy = prepare(config, start)
        reference = lora.AdapterOff(policy)
    else:
        policy, reference = prepare(config, start), prepare(config, frozen_copy(start))
    optimizer = build_optimizer(config, policy)
    state = TrainerState(0, config.kl_coef, {}, torch.Generator().manual_seed(0), ppo.NonFiniteGuard())
    seconds = []
    peak_mib(reset=True)
    for _ in range(REPEATS):
        started = time.perf_counter()
        experience = make_experience(config, policy, reference)
        update(config, policy, optimizer, experience, state)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    ends = (experience.action_mask * torch.arange(1, experience.tokens.shape[1] + 1, device=device)).amax(1).tolist()
    sizes = memory.estimate(config, shape, device=device)
    held = sum(sizes[name] for name in ("weights", "reference", "AdamW", "gradients", "update"))
    row = {
        "tokens": sum(ends), "seconds": statistics.median(seconds), "tokens_per_s": sum(ends) / statistics.median(seconds),
        "padding_sorted": padding(ends, ppo.micro_batches(ends, config.micro_batch_tok)),
        "padding_arrival": padding(ends, in_order(ends, config.micro_batch_tok)),
        "peak_gib": (peak_mib() - before) / 1024, "peak_by_arithmetic_gib": held,
    }  # fmt: skip
    print(f"{config.model}, {config.precision}, {config.batch_size} rows, micro-batches of {config.micro_batch_tok} tokens, "
          f"checkpointing {config.gradient_checkpointing}, LoRA rank {config.lora_rank}")  # fmt: skip
    print("\n".join(f"{name:24s} {value:10.3f}" for name, value in row.items()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {device}"
    print(json.dumps({"bench": "update", "model": config.model, **row, "seconds_all": seconds, "machine": machine}))
    return 0


if __name__ == "__main__":
    run_main(main, "run it again")
