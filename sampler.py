"""The sampling engine: many responses at once from one policy, each from its own stream of uniform numbers.

Letters: S samples, n of them in the batch, N new tokens a row, P prompt tokens, V vocabulary, K context of a draft (drafts.py);
L, G, C as in decoder.py.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from decoder import Slots, build_decoder
from drafts import LONGEST, Drafts, K
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
    top_p: float = 1.0, slots: int = 64, look_every: int | None = None, similar: list[list[int]] = (),
) -> list[Generation]:  # fmt: skip
    """Sample one response per entry of `prompt_of` (an index into `prompts`), each from its own seed.

    Every distinct prompt is read once and its keys and values are copied to its samples. Token t of a sample is the inverse
    of the cumulative distribution at the t-th uniform number of its seed: other rows of the batch cannot matter. At most
    `slots` samples are in the batch; one that ends gives its slot to the next. temperature 0 is greedy: the likeliest token,
    whatever the seed. top_p < 1 samples from the most likely tokens that together have that probability (1904.09751); the
    log-probabilities are of the whole distribution all the same.
    Each step runs the model over the last token of a row and a draft of the next ones. As the uniform numbers are known, so is
    the token that each place would sample; a draft is kept up to the first that differs. similar: texts, in tokens, to draft
    from, beside the prompts and what is written here: they change speed, and a sample as little as other rows of the batch do:
    sums in another order. In bfloat16 that can turn a token.
    look_every: steps between looks at which samples have ended; each look waits for the GPU. Raises ValueError for numbers
    that cannot be meant, FloatingPointError where the policy's logits are not finite.
    """
    if not (temperature == 0 or temperature >= 1e-9) or not top_p > 0 or min(max_new_tok, slots) < 1:
        raise ValueError(f"cannot sample with {temperature=}, {top_p=}, {max_new_tok=}, {slots=}")
    if not all(prompts):
        raise ValueError("a prompt has no token: nothing would predict the first of the response")
    if not prompt_of:
        return []
    device, n_samples, vocabulary = policy.device, len(prompt_of), policy.lm.config.vocab_size
    look_every = look_every or (1 if device.type == "cpu" else 16)
    places = max_new_tok + 2 * LONGEST  # a sample ends within a draft; until the next look one more is run behind it, unused
    uniforms = torch.stack([torch.rand(max_new_tok, generator=torch.Generator().manual_seed(s)) for s in seeds])
    uniforms = F.pad(uniforms, (0, places - max_new_tok)).to(device)  # (S, places)
    written = _Written(n_samples, places, max_new_tok, torch.tensor(policy.stop_ids, device=device))

    order = sorted(range(n_samples), key=lambda i: (len(prompts[prompt_of[i]]), prompt_of[i]))  # like lengths are read together
    waiting, n = iter(order), min(slots, n_samples)
    prefixes, decoder = _Prefixes(policy, prompts, [prompt_of[i] for i in order]), build_decoder(policy)
    # no place beyond the longest sample that there can be: positions that no sample has can change how others are encoded
    cache = Slots(*prefixes.read(prompt_of[order[0]]), n, max(map(len, prompts)) + max_new_tok)
    drafts = Drafts([*similar, *prompts], device, sum(p.numel() for p in policy.lm.parameters()))
    sample, count = torch.zeros(2, n, dtype=torch.long, device=device)  # (n,) each: a row's sample, the tokens it has
    context = torch.zeros(n, K, dtype=torch.long, device=device)  # (n, K): the newest tokens; the last is not in the cache yet

    def start(row: int, number: int) -> None:
        cache.fill(row, *prefixes.read(prompt_of[number]))
        context[row] = torch.tensor([-1] * K + prompts[prompt_of[number]])[-K:]
        sample[row], count[row] = number, 0

    for row in range(n):
        start(row, next(waiting))
    step = 0
    while n:
        if step % look_every == 0:
            best = drafts.best_length(n)
        new = min(best, max(1, len(cache.places) - 1 - cache.places_in_use))
        draft = drafts.propose(context[:n], new)  # (n, N)
        with policy.autocast():
            logits = decoder.step(torch.cat([context[:n, -1:], draft[:, :-1].clamp(0, vocabulary - 1)], 1), cache)  # (n, N, V)
        log_p = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)  # (n, N, V)
        at = (sample[:n, None], count[:n, None] + torch.arange(new, device=device))  # (n, N): which token of which sample
        token = _inverse_cdf(log_p, uniforms[at], top_p) if temperature else log_p.argmax(-1)  # (n, N)
        goes_on = written.lengths[sample[:n]] == 0  # (n,)
        kept, context[:n] = drafts.accept(context[:n], draft, token, goes_on)
        written.add(at, token, log_p.gather(-1, token[..., None]).squeeze(-1), kept)
        count[:n] += kept
        cache.lengths[:n] += kept
        step += 1
        if step % look_every:
            continue
        for row in reversed(written.ended(sample[:n])):
            if (number := next(waiting, None)) is not None:
                start(row, number)
            else:  # the last row takes its place
                n -= 1
                cache.move(n, row)
                for x in (sample, count, context):
                    x[row] = x[n]
        cache.trim(n)
    return written.generations()


@torch.no_grad()
def check_sampler(policy: Policy, longest_tok: int) -> None:
    """Raise ValueError for a model that would not be sampled from as it is trained: some attention and cache kinds.

    longest_tok: tokens of the longest prompt and response together.
    """
    windows = [layer.sliding_window for layer in DynamicCache(config=policy.lm.config).layers if layer.is_sliding]
    if windows and min(windows) < longest_tok:
        raise ValueError(f"its layers attend to {min(windows)} tokens at most, and {longest_tok} are needed: not supported")
    rope = getattr(policy.lm.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):  # longer texts are rotated by other angles, from their first token on
        known = rope.get("original_max_position_embeddings") or policy.lm.config.max_position_embeddings
        if known < longest_tok:
            raise ValueError(f"its positions change beyond {known} tokens, and {longest_tok} are needed: not supported")
    prompts = [[i % policy.lm.config.vocab_size for i in range(5, 17)], [1 % policy.lm.config.vocab_size]]

    def sample(similar: list[list[int]]) -> list[Generation]:
        return generate(policy, prompts, [0, 1], [0, 1], max_new_tok=8, temperature=1.0, similar=similar)

    try:
        made = sample([])
        made += sample([prompt + g.ids for prompt, g in zip(prompts, made, strict=True)])  # several tokens a step
    except (ValueError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError(f"its cache is of a kind that cannot be sampled from ({' '.join(str(error).split())[:80]})") from error
    for prompt, generation in zip(prompts * 2, made, strict=True):
        tokens = torch.tensor([prompt + generation.ids], device=policy.device)
        log_p = policy(tokens)[0][0, len(prompt) - 1 : -1].float().log_softmax(-1)  # (N, V)
        exact = log_p.gather(-1, tokens[0, len(prompt) :, None]).squeeze(-1)
        if not torch.allclose(exact.cpu(), torch.tensor(generation.logprobs), atol=1e-3):
            raise ValueError("its log-probabilities when sampled differ from those of a plain forward: not supported")


def _inverse_cdf(log_p: Tensor, u: Tensor, top_p: float = 1.0) -> Tensor:
    """Return the first token whose cumulative probability exceeds u: (..., V), (...) -> (...)."""
    p = log_p.exp()
    if top_p < 1:
        ranked, token = p.sort(-1, descending=True)
        p = p.scatter(-1, token, ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0))
    cumulative = p.cumsum(-1)
    target = u[..., None] * cumulative[..., -1:]  # rounding may leave the sum a little off 1
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=log_p.shape[-1] - 1)


class _Written:
    """What the samples have written: (S, places) each of tokens and log-probabilities."""

    def __init__(self, n_samples: int, places: int, max_new_tok: int, stop_ids: Tensor):
        self.max_new_tok, self.stop_ids, device = max_new_tok, stop_ids, stop_ids.device
        self.tokens = torch.zeros(n_samples, places, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(n_samples, places, device=device)
        self.lengths = torch.zeros(n_samples, dtype=torch.long, device=device)  # (S,) 0 until the sample has ended
        self.stopped = torch.zeros(n_samples, dtype=torch.bool, device=device)  # (S,)

    def add(self, at: tuple[Tensor, Tensor], token: Tensor, logprob: Tensor, kept: Tensor) -> None:
        """Write tokens (n, N) at (sample, place), and end samples; those after the first `kept` (n,) are overwritten later."""
        (sample, place), new = at, torch.arange(token.shape[1], device=token.device)
        self.tokens[at], self.logprobs[at] = token, logprob
        stops = torch.isin(token, self.stop_ids) & (new < kept[:, None])  # (n, N)
        end = torch.where(stops, place + 1, self.tokens.shape[1] + 1).amin(1)  # (n,): tokens up to the first that stops
        sample, has = sample[:, 0], place[:, 0] + kept  # (n,) each
        ends = (self.lengths[sample] == 0) & ((end <= self.max_new_tok) | (has >= self.max_new_tok))  # (n,)
        self.lengths[sample] += ends * end.clamp(max=self.max_new_tok)
        self.stopped[sample] |= ends & (end <= self.max_new_tok)

    def ended(self, sample: Tensor) -> list[int]:
        """Return which rows' samples (n,) have ended. Waits for the GPU."""
        return (self.lengths[sample] > 0).nonzero().squeeze(-1).tolist()

    def generations(self) -> list[Generation]:
        """Raises FloatingPointError where a log-probability is not a number."""
        if self.logprobs.isnan().any():
            raise FloatingPointError("the policy's logits are not finite: lower the learning rate, or look at its weights")
        columns = (x.tolist() for x in (self.tokens, self.logprobs, self.lengths, self.stopped))
        return [
            Generation(ids[:end], logprobs[:end], "stop" if stopped else "length")
            for ids, logprobs, end, stopped in zip(*columns, strict=True)
        ]


class _Prefixes:
    """Prompts as the model has read them, all but the last token: keys and values, per layer (G, P - 1, C).

    They are asked for in a known order and read some at a time: what is past is dropped.
    """

    def __init__(self, policy: Policy, prompts: list[list[int]], order: list[int]):
        self.policy, self.prompts, self.ahead, self.known = policy, prompts, list(dict.fromkeys(order)), {}

    def read(self, number: int) -> tuple[list[Tensor], list[Tensor]]:
        if number not in self.known:
            self.known = {}  # first, to free them
            chosen, budget = [self.ahead.pop(0)], PREFILL_TOK[self.policy.device.type]
            while self.ahead and (len(chosen) + 1) * max(len(self.prompts[i]) for i in [*chosen, self.ahead[0]]) <= budget:
                chosen.append(self.ahead.pop(0))
            self.known = dict(zip(chosen, self._forward([self.prompts[i] for i in chosen]), strict=True))
        return self.known[number]

    def _forward(self, prompts: list[list[int]]) -> list[tuple[list[Tensor], list[Tensor]]]:
        tokens = torch.zeros(
            len(prompts), max(map(len, prompts)), dtype=torch.long
        )  # (U, P), padded right: nothing looks ahead
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)] = torch.tensor(ids)
        cache = DynamicCache(config=self.policy.lm.config)
        with self.policy.autocast():
            self.policy.lm.base_model(tokens.to(self.policy.device), cache=cache, use_cache=True)
        dtype = torch.bfloat16 if self.policy.bf16 else None
        keys, values = ([x.to(dtype) for x in kind] for kind in zip(*((x.keys, x.values) for x in cache.layers), strict=True))
        return [
            ([x[row, :, : len(ids) - 1] for x in keys], [x[row, :, : len(ids) - 1] for x in values])
            for row, ids in enumerate(prompts)
        ]
