"""A toy policy and made-up experience, shared by the tests of ppo.py."""

import multiprocessing
import os
import time

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import ppo

NAN = float("nan")
SETTINGS = {
    "epochs": 1, "minibatches": 1, "micro_batch_tok": 10_000, "gamma": 1.0, "gae_lambda": 0.95, "clip_eps": 0.2,
    "value_clip_eps": 0.2, "value_coef": 0.5, "entropy_coef": 0.01, "kl_coef": 0.05, "max_grad_norm": 1.0,
    "temperature": 0.7,
}


class ToyPolicy(nn.Module):
    """Embedding, GRU (causal), tied to nothing; fp64 so that gradients can be compared to 1e-9."""

    def __init__(self, vocabulary=11, hidden=8, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.backbone = nn.GRU(hidden, hidden, batch_first=True)
        self.lm_head = nn.Linear(hidden, vocabulary)
        self.value_head = nn.Linear(hidden, 1)
        self.register_buffer("value_mean", torch.tensor(0.0))
        self.register_buffer("value_std", torch.tensor(1.0))
        self.double()

    def forward(self, tokens, detach_value=False):
        hidden, _ = self.backbone(self.embedding(tokens))
        values = self.value_head(hidden.detach() if detach_value else hidden).squeeze(-1)
        return self.lm_head(hidden), values


def sample_experience(policy, prompts=(2, 3, 1, 4, 2, 3), responses=(5, 3, 7, 1, 6, 4), seed=1, garbage=0.0):
    """Random ragged episodes with the log-probabilities and values of this policy; garbage fills masked cells."""
    generator = torch.Generator().manual_seed(seed)
    B, T = len(prompts), max(map(sum, zip(prompts, responses, strict=True))) + 2
    tokens, position = torch.randint(11, (B, T), generator=generator), torch.arange(T)
    start, length = torch.tensor(prompts)[:, None], torch.tensor(responses)[:, None]
    mask = (position >= start) & (position < start + length)
    with torch.no_grad():
        logprobs, _, values = ppo.evaluate(policy, tokens, mask, SETTINGS["temperature"])
    reference = torch.where(mask, logprobs + 0.3 * torch.randn(B, T, generator=generator), 0.0)
    rewards = torch.zeros(B, T).scatter(1, start + length - 1, torch.randn(B, 1, generator=generator) * 3 - 4)
    cells = [torch.where(mask, x, garbage) for x in (logprobs, reference, values, rewards)]
    durations = torch.rand(B, generator=generator) * 50 + 1
    return ppo.Experience(tokens, mask, *cells, durations, torch.arange(B) % 2, rewards.sum(1) < -4)


def rows_of(experience, rows):
    return ppo.Experience(**{name: x if x is None else x[rows] for name, x in vars(experience).items()})


def parameters(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


def updated(experience, **changes):
    """One SGD update of a fresh toy policy: its parameters and metrics."""
    policy = ToyPolicy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    metrics = ppo.update(policy, optimizer, experience, **{**SETTINGS, **changes})
    return parameters(policy), metrics


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(torch.as_tensor(actual), torch.as_tensor(expected), atol=atol, rtol=0, check_dtype=False)


# What every rank imports. A server imports it once, and each rank is a fork of that server: no six seconds of imports a rank.
PRELOAD = ["numpy", "pytest", "torch.distributed.fsdp", "torch.distributed.tensor", "transformers.models.qwen2.modeling_qwen2"]


def run_with_environment(rank: int, run_rank, environment: dict, directory: str) -> None:
    os.environ |= environment  # the server's is of when it was started
    run_rank(rank, directory)


def spawn_two_ranks(run_rank, directory) -> list[dict]:
    """Run run_rank(rank, directory) in two processes; return what each left in rank{rank}.pt."""
    multiprocessing.set_forkserver_preload(PRELOAD)
    args = (run_rank, dict(os.environ), str(directory))
    context = mp.start_processes(run_with_environment, args, nprocs=2, join=False, start_method="forkserver")
    deadline = time.monotonic() + 90
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("two ranks did not finish within 90 s: deadlock")
    return [torch.load(directory / f"rank{rank}.pt") for rank in range(2)]
