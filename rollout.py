"""Collection: prompts -> sampled responses -> instrumented programs in sandboxes -> rewards -> tensors for the learner.

Collection is synchronous: every program of a batch is sampled by the same policy and all of them are waited for. Everything
random about an episode (its kind, the choice of the earlier program it shows, its tokens, its program's seed) is drawn from the
run's seed and the episode's global index alone, so that neither the number of ranks nor a resume changes it.

Letters: B episodes, T tokens, N new tokens, U distinct prompts, P prompt tokens, V vocabulary.
"""

import hashlib
import random
import re
import sys
from dataclasses import asdict, dataclass, field, replace

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

import ppo
from instrument import MILESTONES, instrument, marker, new_token, strip_markers
from model import Policy
from prompts import Attempt, build_prompt, encode_prompt, extract_program
from reward import Reward, compute_reward
from sandbox import Execution, InfraError, Sandbox
from tasks import Task

KEPT_CHARS = 4000  # of the head and of the tail of each output stream, in episodes
NO_PROGRAM = Execution(status="error", exit_code=None, stdout="", stderr="the response holds no program", duration_s=1e-3)


@dataclass(frozen=True)
class Generation:
    """One sampled response."""

    ids: list[int]
    logprobs: list[float]  # of each sampled token, at the sampling temperature
    finish_reason: str  # "stop": the policy sampled a stop token (kept, and trained on); "length": cut at the limit


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

    def record(self) -> dict:
        """Return what <run>/episodes.jsonl keeps."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("execution", "reward")}
        return {**fields, "execution": asdict(self.execution), "reward": asdict(self.reward)}


# ---------------------------------------------------------------------------------------------------------------- sampling


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

    def draw(self, rng: random.Random) -> Attempt | None:
        attempts = [a for _, a in self.best] + self.recent
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
class Collector:
    """Turn a policy into episodes. Owns no process: the sandbox is the caller's."""

    task: Task
    sandbox: Sandbox
    seed: int | str
    secret: bytes  # milestone markers are drawn from it, so that no program can print them
    pool: ImprovementPool
    temperature: float
    max_prompt_tok: int
    max_new_tok: int
    brief: bool  # brief prompts, for the tiny policy
    improve_frac: float
    memory_gib: float = 4.0  # named in the prompt; the sandbox enforces its own
    sample_batch: int = 64  # rows sampled together: memory and speed, never the programs
    reward_options: dict = field(default_factory=dict)

    def collect(self, policy: Policy, indices: range, policy_version: int = 0) -> list[Episode]:
        """Generate, instrument, run and reward one episode per global sample index; infra errors are left out."""
        prompts = [self._prompt(policy.tokenizer, index) for index in indices]
        responses = self._generate(policy, [ids for _, ids in prompts], indices)
        texts = [policy.tokenizer.decode(_without_stop(r), skip_special_tokens=True) for r in responses]
        programs = [extract_program(text) for text in texts]
        executions = self._run(programs, indices)
        episodes = []
        for index, (kind, prompt_ids), generation, text, program, execution in zip(
            indices, prompts, responses, texts, programs, executions, strict=True
        ):
            token = self._token(index)
            try:
                reward = compute_reward(self.task, program or "", execution, token, **self.reward_options)
            except InfraError as error:
                print(f"left out of the batch: program {index}: {error}", file=sys.stderr)
                continue
            episodes.append(
                Episode(
                    index=index,
                    task=self.task.name,
                    kind=kind,
                    prompt_ids=prompt_ids,
                    response_ids=generation.ids,
                    behaviour_logprobs=generation.logprobs,
                    finish_reason=generation.finish_reason,
                    policy_version=policy_version,
                    response=text,
                    program=program,
                    execution=as_logged(execution, token),
                    reward=reward,
                )
            )
        return episodes

    def _prompt(self, tokenizer, index: int) -> tuple[str, list[int]]:
        rng = random.Random(f"{self.seed}/prompt/{index}")
        earlier = self.pool.draw(rng) if rng.random() < self.improve_frac else None
        for kind, attempt in (("improve", earlier), ("scratch", None)):
            if kind == "improve" and attempt is None:
                continue
            ids = encode_prompt(tokenizer, build_prompt(self.task, attempt, brief=self.brief, memory_gib=self.memory_gib))
            if len(ids) <= self.max_prompt_tok:  # a program too long to show gives way to a prompt from scratch
                return kind, ids
        raise ValueError(f"the prompt of {self.task.name} has {len(ids)} tokens: raise --max-prompt-tok {self.max_prompt_tok}")

    def _generate(self, policy: Policy, prompts: list[list[int]], indices: range) -> list[Generation]:
        responses = []
        for start in range(0, len(prompts), self.sample_batch):
            rows = prompts[start : start + self.sample_batch]
            distinct = sorted(set(map(tuple, rows)))
            responses += generate(
                policy, [list(ids) for ids in distinct], [distinct.index(tuple(ids)) for ids in rows],
                [self.sample_seed(index) for index in indices[start : start + self.sample_batch]],
                max_new_tok=self.max_new_tok, temperature=self.temperature,
            )  # fmt: skip
        return responses

    def _run(self, programs: list[str | None], indices: range) -> list[Execution]:
        futures = []
        for program, index in zip(programs, indices, strict=True):
            if program is None:
                futures.append(None)
                continue
            instrumented, _ = instrument(program, self._token(index))
            futures.append(
                self.sandbox.submit(
                    instrumented, self.task.public_dir, time_limit_s=self.task.time_limit_s, seed=self.sample_seed(index)
                )
            )
        return [NO_PROGRAM if future is None else future.result() for future in futures]

    def sample_seed(self, index: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/sample/{index}".encode()).digest()[:4], "big")

    def _token(self, index: int) -> str:
        return new_token(f"{self.secret.hex()}/{self.seed}/marker/{index}")


def _without_stop(generation: Generation) -> list[int]:
    return generation.ids[:-1] if generation.finish_reason == "stop" else generation.ids


# ------------------------------------------------------------------------------------------------------------ to tensors


@torch.no_grad()
def to_experience(
    episodes: list[Episode], policy: Policy, reference: Policy, *, temperature: float, micro_batch_tok: int
) -> ppo.Experience:
    """Lay episodes out as right-padded (B, T) tensors, with the values of `policy` and log-probabilities of `reference`.

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
    lengths = [len(e.prompt_ids) + len(e.response_ids) for e in episodes]
    for rows in ppo.micro_batches(lengths, micro_batch_tok):
        end = max(lengths[row] for row in rows)
        ids, mask = tokens[rows, :end], action_mask[rows, :end]
        _, _, normalised = ppo.evaluate(policy, ids, mask, temperature)
        values[rows, :end] = (policy.value_mean + policy.value_std * normalised) * mask
        reference_logprobs[rows, :end] = ppo.evaluate(reference, ids, mask, temperature)[0]
    return ppo.Experience(
        tokens=tokens, action_mask=action_mask, behaviour_logprobs=behaviour_logprobs.to(device),
        reference_logprobs=reference_logprobs, values=values, rewards=rewards.to(device),
        durations=torch.tensor([e.execution.duration_s for e in episodes], dtype=torch.float32, device=device),
        task_index=torch.zeros(len(episodes), dtype=torch.long, device=device),
        failed=torch.tensor([e.reward.score is None for e in episodes], dtype=torch.bool, device=device),
    )  # fmt: skip
