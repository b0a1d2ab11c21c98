"""The sampling engine: many responses at once from one policy, each from its own stream of uniform numbers.

Letters: B samples, N new tokens, U distinct prompts, P prompt tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from model import Policy


@dataclass(frozen=True)
class Generation:
    """One sampled response."""

    ids: list[int]
    logprobs: list[float]  # of each sampled token, at the sampling temperature
    finish_reason: str  # "stop": the policy sampled a stop token (kept, and trained on); "length": cut at the limit


@torch.inference_mode()
def generate(
    policy: Policy, prompts: list[list[int]], prompt_of: list[int], seeds: list[int], *, max_new_tok: int, temperature: float
) -> list[Generation]:
    """Sample one response per entry of `prompt_of` (an index into `prompts`), each from its own seed.

    Every distinct prompt is prefilled once and its keys and values are copied to its samples. Token t of a sample is the
    inverse of the cumulative distribution at the t-th uniform number of its seed: other rows of the batch cannot matter.
    """
    device, n_rows = policy.device, len(prompt_of)
    uniforms = torch.stack([torch.rand(max_new_tok, generator=torch.Generator().manual_seed(s)) for s in seeds]).to(device)
    logits, cache, mask, positions = _prefill(policy, prompts, prompt_of, max_new_tok)
    width = mask.shape[1] - max_new_tok  # P
    stop_ids = torch.tensor(policy.stop_ids, device=device)
    tokens = torch.zeros(n_rows, max_new_tok, dtype=torch.long, device=device)  # (B, N)
    logprobs = torch.zeros(n_rows, max_new_tok, device=device)  # (B, N)
    lengths = torch.full((n_rows,), max_new_tok, device=device)  # (B,)
    stopped = torch.zeros(n_rows, dtype=torch.bool, device=device)  # (B,)
    rows = torch.arange(n_rows, device=device)  # the samples that the cache still holds
    for t in range(max_new_tok):
        log_p = torch.log_softmax(logits.float() / temperature, dim=-1)  # (rows, V)
        token = _inverse_cdf(log_p, uniforms[rows, t])  # (rows,)
        live = ~stopped[rows]
        tokens[rows, t] = token
        logprobs[rows, t] = log_p.gather(-1, token[:, None]).squeeze(-1)
        ended = live & torch.isin(token, stop_ids)
        lengths[rows[ended]] = t + 1
        stopped[rows[ended]] = True
        n_live = int((~stopped[rows]).sum())
        if n_live == 0 or t + 1 == max_new_tok:
            break
        if n_live <= len(rows) // 2:  # finished rows leave the batch when they are half of it
            keep = (~stopped[rows]).nonzero().squeeze(-1)
            cache = _select_rows(policy, cache, keep, mask.shape[1])
            rows, token, mask, positions = rows[keep], token[keep], mask[keep], positions[keep]
        seen = mask[:, None, None, : width + t + 1]  # (rows, 1, 1, places in use)
        logits, _ = policy(token[:, None], cache=cache, attention_mask=seen, position_ids=positions + t, use_cache=True)
        logits = logits[:, -1]  # (rows, V)
    tokens, logprobs, lengths, stopped = (x.tolist() for x in (tokens, logprobs, lengths, stopped))
    return [
        Generation(ids[:n], lp[:n], "stop" if stop else "length")
        for ids, lp, n, stop in zip(tokens, logprobs, lengths, stopped, strict=True)
    ]


def _inverse_cdf(log_p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return the first token whose cumulative probability exceeds u: (B, V), (B,) -> (B,)."""
    cumulative = log_p.exp().cumsum(-1)
    target = u[:, None] * cumulative[:, -1:]  # rounding may leave the sum a little off 1
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=log_p.shape[-1] - 1)


def _prefill(policy: Policy, prompts: list[list[int]], prompt_of: list[int], max_new_tok: int):
    """Return next-token logits (B, V), a cache of P + N places, its mask (B, P + N) and the first positions (B, 1)."""
    device, width = policy.device, max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)  # (U, P), left-padded: all samples go on at the same place
    mask = torch.ones(len(prompts), width + max_new_tok, dtype=torch.bool)  # (U, P + N)
    for row, ids in enumerate(prompts):
        tokens[row, width - len(ids) :] = torch.tensor(ids)
        mask[row, : width - len(ids)] = False
    tokens, mask, rows = tokens.to(device), mask.to(device), torch.tensor(prompt_of, device=device)
    positions = (mask[:, :width].cumsum(-1) - 1).clamp(min=0)  # (U, P)
    prefix = DynamicCache(config=policy.lm.config)
    logits, _ = policy(tokens, cache=prefix, attention_mask=mask[:, :width].long(), position_ids=positions, use_cache=True)
    cache = _select_rows(policy, prefix, rows, width + max_new_tok)
    return logits[rows, -1], cache, mask[rows], positions[rows, -1:] + 1


class PreallocatedLayer(DynamicLayer):
    """Keys and values of one layer in a buffer of fixed size; attention sees only the part in use."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, size: int):
        """Copy keys and values (B, heads, used, D) to the start of a buffer of `size` places."""
        super().__init__()
        self.used = keys.shape[2]
        self.key_buffer = keys.new_empty(*keys.shape[:2], size, keys.shape[3])
        self.value_buffer = values.new_empty(*values.shape[:2], size, values.shape[3])
        self.is_initialized = True
        self._write(0, keys, values)

    def _write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.used = start + keys.shape[2]
        self.key_buffer[:, :, start : self.used] = keys
        self.value_buffer[:, :, start : self.used] = values
        self.keys, self.values = self.key_buffer[:, :, : self.used], self.value_buffer[:, :, : self.used]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_, **__):
        self._write(self.used, key_states, value_states)
        return self.keys, self.values


def _select_rows(policy: Policy, source: Cache, rows: torch.Tensor, size: int) -> DynamicCache:
    """Copy the given rows of a cache into a new one of `size` places."""
    cache = DynamicCache(config=policy.lm.config)
    cache.layers = [PreallocatedLayer(layer.keys[rows], layer.values[rows], size) for layer in source.layers]
    return cache
