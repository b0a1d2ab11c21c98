"""The sampling engine: many responses at once from one policy, each from its own stream of uniform numbers.

Letters: S samples, n of them in the batch, N new tokens, P prompt tokens, V vocabulary; L, G, C as in decoder.py.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from decoder import Slots, build_decoder
from model import Policy

# Tokens of prompts, padding included, that go through the model together: enough to keep the device busy, no more, since
# prompts of other lengths are padded to the longest.
PREFILL_TOK = {"cpu": 1024, "cuda": 8192}


@dataclass(frozen=True)
class Generation:
    """One sampled response."""

    ids: list[int]
    logprobs: list[float]  # of each sampled token, at the sampling temperature (1 if greedy)
    finish_reason: str  # "stop": the policy sampled a stop token (kept, and trained on); "length": cut at the limit


@torch.inference_mode()
def generate(
    policy: Policy, prompts: list[list[int]], prompt_of: list[int], seeds: list[int], *, max_new_tok: int, temperature: float,
    top_p: float = 1.0, slots: int = 64, look_every: int | None = None,
) -> list[Generation]:  # fmt: skip
    """Sample one response per entry of `prompt_of` (an index into `prompts`), each from its own seed.

    Every distinct prompt is read once and its keys and values are copied to its samples. Token t of a sample is the inverse
    of the cumulative distribution at the t-th uniform number of its seed: other rows of the batch cannot matter. At most
    `slots` samples are in the batch; one that ends gives its slot to the next. temperature 0 is greedy: the likeliest token,
    whatever the seed. top_p < 1 samples from the most likely tokens that together have that probability (1904.09751); the
    log-probabilities are of the whole distribution all the same.
    look_every: steps between looks at which samples have ended; each look waits for the GPU. Raises ValueError for numbers
    that cannot be meant, FloatingPointError where the policy's logits are not finite.
    """
    if not (temperature == 0 or temperature >= 1e-9) or not top_p > 0 or min(max_new_tok, slots) < 1:
        raise ValueError(f"cannot sample with {temperature=}, {top_p=}, {max_new_tok=}, {slots=}")
    if not all(prompts):
        raise ValueError("a prompt has no token: nothing would predict the first of the response")
    if not prompt_of:
        return []
    device, n_samples = policy.device, len(prompt_of)
    look_every = look_every or (1 if device.type == "cpu" else 16)
    steps = max_new_tok + look_every  # until the next look a sample that has ended goes on, unused
    uniforms = torch.stack([torch.rand(max_new_tok, generator=torch.Generator().manual_seed(s)) for s in seeds])
    uniforms = F.pad(uniforms, (0, look_every)).to(device)  # (S, steps)
    stop_ids = torch.tensor(policy.stop_ids, device=device)
    tokens = torch.zeros(n_samples, steps, dtype=torch.long, device=device)  # (S, steps)
    logprobs = torch.zeros(n_samples, steps, device=device)  # (S, steps)
    lengths = torch.zeros(n_samples, dtype=torch.long, device=device)  # (S,) 0 until the sample has ended
    stopped = torch.zeros(n_samples, dtype=torch.bool, device=device)  # (S,)

    order = sorted(range(n_samples), key=lambda i: (len(prompts[prompt_of[i]]), prompt_of[i]))  # like lengths are read together
    waiting, n = iter(order), min(slots, n_samples)
    prefixes, decoder = _Prefixes(policy, prompts, [prompt_of[i] for i in order]), build_decoder(policy)
    cache = Slots(*prefixes.read(prompt_of[order[0]])[:2], n, max(map(len, prompts)) + steps)
    logits = torch.zeros(n, policy.lm.get_output_embeddings().weight.shape[0], device=device)  # (n, V)
    sample, count = torch.zeros(2, n, dtype=torch.long, device=device)  # (n,) each: a row's sample, the tokens it has

    def start(row: int, number: int) -> None:
        keys, values, first_logits = prefixes.read(prompt_of[number])
        cache.fill(row, keys, values)
        logits[row], sample[row], count[row] = first_logits, number, 0

    for row in range(n):
        start(row, next(waiting))
    step = 0
    while n:
        log_p = torch.log_softmax(logits[:n].float() / (temperature or 1.0), dim=-1)  # (n, V)
        u = uniforms[sample[:n], count[:n]]  # (n,)
        token = _inverse_cdf(log_p, u, top_p) if temperature else log_p.argmax(-1)  # (n,)
        tokens[sample[:n], count[:n]] = token
        logprobs[sample[:n], count[:n]] = log_p.gather(-1, token[:, None]).squeeze(-1)
        count[:n] += 1
        goes_on, stops = lengths[sample[:n]] == 0, torch.isin(token, stop_ids)  # (n,) each
        stopped[sample[:n]] |= goes_on & stops
        lengths[sample[:n]] += count[:n] * (goes_on & (stops | (count[:n] == max_new_tok)))
        with policy.autocast():
            logits = decoder.step(token, cache)
        step += 1
        if step % look_every:
            continue
        for row in reversed((lengths[sample[:n]] > 0).nonzero().squeeze(-1).tolist()):
            if (number := next(waiting, None)) is not None:
                start(row, number)
            else:  # the last row takes its place
                n -= 1
                cache.move(n, row)
                for x in (logits, sample, count):
                    x[row] = x[n]
        cache.trim(n)
    if logprobs.isnan().any():
        raise FloatingPointError("the policy's logits are not finite: lower the learning rate, or look at its weights")
    tokens, logprobs, lengths, stopped = (x.tolist() for x in (tokens, logprobs, lengths, stopped))
    return [
        Generation(ids[:end], lp[:end], "stop" if stop else "length")
        for ids, lp, end, stop in zip(tokens, logprobs, lengths, stopped, strict=True)
    ]


@torch.no_grad()
def check_sampler(policy: Policy, longest_tok: int) -> None:
    """Raise ValueError for a model that would not be sampled from as it is trained: some attention and cache kinds.

    longest_tok: tokens of the longest prompt and response together.
    """
    windows = [layer.sliding_window for layer in DynamicCache(config=policy.lm.config).layers if layer.is_sliding]
    if windows and min(windows) < longest_tok:
        raise ValueError(f"its layers attend to {min(windows)} tokens at most, and {longest_tok} are needed: not supported")
    prompts, new_tok = [[i % policy.lm.config.vocab_size for i in range(5, 17)], [1 % policy.lm.config.vocab_size]], 4
    try:
        made = generate(policy, prompts, [0, 1], [0, 1], max_new_tok=new_tok, temperature=1.0)
    except (ValueError, AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(f"its cache is of a kind that cannot be sampled from ({' '.join(str(error).split())[:80]})") from error
    for prompt, generation in zip(prompts, made, strict=True):
        tokens = torch.tensor([prompt + generation.ids], device=policy.device)
        log_p = policy(tokens)[0][0, len(prompt) - 1 : -1].float().log_softmax(-1)  # (N, V)
        exact = log_p.gather(-1, tokens[0, len(prompt) :, None]).squeeze(-1)
        if not torch.allclose(exact.cpu(), torch.tensor(generation.logprobs), atol=1e-3):
            raise ValueError("its log-probabilities when sampled differ from those of a plain forward: not supported")


def _inverse_cdf(log_p: Tensor, u: Tensor, top_p: float = 1.0) -> Tensor:
    """Return the first token whose cumulative probability exceeds u: (n, V), (n,) -> (n,)."""
    p = log_p.exp()
    if top_p < 1:
        ranked, token = p.sort(-1, descending=True)
        p = p.scatter(-1, token, ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0))
    cumulative = p.cumsum(-1)
    target = u[:, None] * cumulative[:, -1:]  # rounding may leave the sum a little off 1
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=log_p.shape[-1] - 1)


class _Prefixes:
    """Prompts as the model has read them: keys and values, per layer (G, P, C), and the logits (V,) of the first new token.

    They are asked for in a known order and read some at a time: what is past is dropped.
    """

    def __init__(self, policy: Policy, prompts: list[list[int]], order: list[int]):
        self.policy, self.prompts, self.ahead, self.known = policy, prompts, list(dict.fromkeys(order)), {}

    def read(self, number: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        if number not in self.known:
            self.known = {}  # first, to free them
            chosen, budget = [self.ahead.pop(0)], PREFILL_TOK[self.policy.device.type]
            while self.ahead and (len(chosen) + 1) * max(len(self.prompts[i]) for i in [*chosen, self.ahead[0]]) <= budget:
                chosen.append(self.ahead.pop(0))
            self.known = dict(zip(chosen, self._forward([self.prompts[i] for i in chosen]), strict=True))
        return self.known[number]

    def _forward(self, prompts: list[list[int]]) -> list[tuple[list[Tensor], list[Tensor], Tensor]]:
        lengths = torch.tensor([len(ids) for ids in prompts])
        tokens = torch.zeros(len(prompts), int(lengths.max()), dtype=torch.long)  # (U, P), right-padded: nothing looks ahead
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)] = torch.tensor(ids)
        lm, cache = self.policy.lm, DynamicCache(config=self.policy.lm.config)
        with self.policy.autocast():
            hidden = lm.base_model(tokens.to(self.policy.device), cache=cache, use_cache=True).last_hidden_state  # (U, P, D)
            last = hidden[torch.arange(len(prompts)), lengths - 1]  # (U, D)
            logits = lm.get_output_embeddings()(last)  # (U, V): logits of every place would fill the memory
        dtype = torch.bfloat16 if self.policy.bf16 else None
        keys, values = ([x.to(dtype) for x in kind] for kind in zip(*((x.keys, x.values) for x in cache.layers), strict=True))
        return [
            ([x[row, :, :n] for x in keys], [x[row, :, :n] for x in values], logits[row])
            for row, n in enumerate(lengths.tolist())
        ]
