"""The mathematics of nanoMLE: losses and one PPO update. Advantages: advantages.py; duration weights: duration.py.

Letters: B episodes, T tokens, V vocabulary, D hidden, N actions (the True cells of action_mask). Rows are prompt +
response, right-padded. A (B, T) tensor is aligned with its actions: logprobs[b, t] is of tokens[b, t] after [b, :t],
values[b, t] is V(tokens[b, :t]). Masked cells may hold anything, NaN too. Inputs are not written to.
Policy: policy(tokens, detach_value=False) -> logits (B, T, V), values (B, T); position t speaks about token t + 1.
It has value_head, nn.Linear(D, 1), and 0-d buffers: value in reward units = value_std * values + value_mean.
Ranks: equal parameters, own episodes, maybe none. Means are over all ranks. A "collective" must be called by each rank.

Departures from PPO (1707.06347): a duration weight on each sample's policy term; means over all tokens of a minibatch,
not over sequences; the value loss in normalised units; steps with a NaN are skipped. With advantage "group" there is no value.
"""

from dataclasses import dataclass
from functools import partial
from math import isfinite

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import get_total_norm

from advantages import compute_gae, group_advantages, masked, masked_moments, masked_whiten
from duration import duration_metrics, duration_weights
from ranks import all_max, all_sum, gather, rank_and_world
from shard import clip_gradients, even_out, sum_gradients

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8 is finite in fp32, exp(100) is not
MAX_STALE_RATIO = 5.0  # weight of a token that the policy has come to like better since it was sampled
MIN_VALUE_STD = 1e-2  # reward units: returns closer together than this are one return
STEP_METRICS = ("update/loss", "policy/loss", "policy/entropy", "policy/kl_k3", "policy/clip_frac", "policy/approx_kl",
                "policy/ratio_mean", "value/loss", "value/clip_frac")  # these add up over micro-batches and ranks


@dataclass(frozen=True)
class Experience:
    """One rank's share of a batch of finished episodes, all on the policy's device."""
    tokens: Tensor  # (B, T) ids
    action_mask: Tensor  # (B, T) bool, True exactly where the token was generated, the sampled stop token included
    behaviour_logprobs: Tensor  # (B, T) nats, stored at sampling, never recomputed
    reference_logprobs: Tensor  # (B, T) nats, of the frozen reference
    values: Tensor  # (B, T) reward units
    rewards: Tensor  # (B, T) reward units, on the last generated token
    durations: Tensor  # (B,) seconds that the program ran
    task_index: Tensor  # (B,) which task
    failed: Tensor | None = None  # (B,) bool, the program failed; needed by whitening "isolate" only
    inverse_inclusion: Tensor | None = None  # (B,) 1 / P(collected), needed by duration_weight "ipw" only
    proximal_logprobs: Tensor | None = None  # (B, T) nats, of the policy before this update, where samples are stale
    group_index: Tensor | None = None  # (B,) which task and kind of prompt, needed by advantage "group" only


@dataclass
class NonFiniteGuard:
    """Count optimizer steps skipped in a row, over the whole training; raise FloatingPointError at the tenth."""
    in_a_row: int = 0

    def record(self, skipped):
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if self.in_a_row >= 10:
            raise FloatingPointError("ten updates in a row had a NaN or infinite loss or gradient; lower the learning rate")


# losses
def token_mean(x, mask, normaliser=None):
    """Sum x over the mask and divide by normaliser, by default the number of cells in this mask."""
    return masked(x, mask).sum() / (mask.sum().clamp(min=1) if normaliser is None else normaliser)


def evaluate(policy, tokens, action_mask, temperature, detach_value=False):
    """Return logprobs and exact entropies (nats, at the sampling temperature) and values (head's units), each (B, T).

    Cells outside the mask are 0. Raises ValueError for temperature <= 0 and for an action in column 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature {temperature} must be positive in training: greedy sampling has no gradient")
    if action_mask[:, :1].any():
        raise ValueError("action_mask marks column 0, which nothing predicts; put at least one prompt token before")
    logits, values = policy(tokens, detach_value=True) if detach_value else policy(tokens)  # (B, T, V), (B, T)
    row, column = action_mask.nonzero(as_tuple=True)  # (N,) each
    logits, values = logits[row, column - 1], values[row, column - 1]  # (N, V), (N,): actions only, to save memory
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_pi = (logits.to(dtype) / temperature).log_softmax(-1)  # (N, V)
    logprobs = log_pi.gather(-1, tokens[row, column, None]).squeeze(-1)  # (N,)
    entropy = -(log_pi.exp() * log_pi).sum(-1)  # (N,)
    cells = (logprobs, entropy, values.to(dtype))
    return tuple(x.new_zeros(tokens.shape).index_put((row, column), x) for x in cells)  # (B, T) each


def kl_k3(logprobs, reference_logprobs):
    """Estimate KL(pi || reference) per token (B, T), in nats: the k3 estimator of Schulman, never negative.

    As a loss its expected gradient is that of KL(reference || pi), which has the same minimum.
    """
    log_ratio = (reference_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (B, T)
    return log_ratio.expm1() - log_ratio  # q/p - 1 - log(q/p)


def policy_loss(logprobs, old_logprobs, advantages, weights, action_mask, clip_eps, normaliser=None, dual_clip=None,
                behaviour_logprobs=None):
    """Compute the clipped surrogate loss (PPO, 1707.06347), each sample's term times its duration weight.

    loss = - Σ w_k min(ratio A, clip(ratio, 1-ε, 1+ε) A) / normaliser
    Tensors (B, T), weights (B,); normaliser: valid tokens of the minibatch on all ranks, by default of this mask, so
    that loss and metrics (not ratio_max) add up over micro-batches. dual_clip c > 1: surrogate >= c A (1912.09729).
    behaviour_logprobs: of an older policy μ that sampled; each token's term times min(π_old / μ, 5) (2110.00641).
    """
    mean = partial(token_mean, mask=action_mask, normaliser=normaliser)
    logprobs, old_logprobs, advantages = (masked(x, action_mask) for x in (logprobs, old_logprobs, advantages))
    ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()  # (B, T)
    clipped = ratio.clamp(1 - clip_eps, 1 + clip_eps)  # (B, T)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)  # (B, T)
    if dual_clip is not None:
        surrogate = torch.where(advantages < 0, surrogate.maximum(dual_clip * advantages), surrogate)
    if behaviour_logprobs is not None:
        stale = (old_logprobs - masked(behaviour_logprobs, action_mask)).clamp(max=MAX_LOG_RATIO).exp()  # (B, T)
        surrogate = stale.clamp(max=MAX_STALE_RATIO) * surrogate
    # Δt enters here and nowhere else: w_k scales the whole policy term of sample k, its clipped tokens too.
    surrogate = weights[:, None] * surrogate  # (B, 1) * (B, T)
    metrics = {
        "clip_frac": mean((ratio - 1).abs() > clip_eps),
        "approx_kl": mean(kl_k3(old_logprobs, logprobs)),  # KL(old || new) on tokens drawn from old
        "ratio_mean": mean(ratio),
        "ratio_max": masked(ratio, action_mask).max(),
    }
    return -mean(surrogate), {name: x.detach() for name, x in metrics.items()}


def value_loss(values, old_values, returns, action_mask, clip_eps, normaliser=None):
    """Compute the clipped value loss, 0.5 Σ max((V - ret)², (clip(V, V_old ± ε) - ret)²) / normaliser.

    All (B, T), all in one unit, clip_eps too (inf: no clipping); normaliser as in policy_loss. Without returns (None) it is 0.
    """
    if returns is None:
        return values.new_zeros(()), {"clip_frac": values.new_zeros(())}
    mean = partial(token_mean, mask=action_mask, normaliser=normaliser)
    values, old_values, returns = (masked(x, action_mask) for x in (values, old_values, returns))  # (B, T)
    clipped = torch.clamp(values, old_values - clip_eps, old_values + clip_eps)  # (B, T)
    loss = 0.5 * mean(torch.maximum((values - returns).square(), (clipped - returns).square()))
    return loss, {"clip_frac": mean((values - old_values).abs() > clip_eps).detach()}


def update_kl_coefficient(coefficient, observed_kl, target):
    """Return the next KL coefficient from update's policy/kl_ref, equal on all ranks; both KLs in nats per sequence."""
    if not target > 0:
        raise ValueError(f"KL target {target} must be positive (nats per sequence)")
    return coefficient * (1.2 if observed_kl > 1.5 * target else 0.8 if observed_kl < 0.5 * target else 1.0)


@torch.no_grad()
def update_value_statistics(policy, returns, action_mask, rate):
    """Move value_mean and value_std by rate towards those of the returns (B, T), reward units (PopArt, 1602.07714).

    The head is rescaled so that no prediction moves. A new head (all zeros) has none to keep, starts at these moments and
    gives True. No valid token, or a NaN: nothing changes. A collective.
    """
    mean, std = masked_moments(returns, action_mask)
    if all_sum(action_mask.sum()) == 0 or not (mean + std).isfinite():
        return False
    head, (old_mean, old_std) = policy.value_head, torch.stack([policy.value_mean, policy.value_std]).double()  # copies
    rate = 1.0 if (fresh := not (head.weight.any() or head.bias.any())) else rate
    second = torch.lerp(old_std**2 + old_mean**2, std**2 + mean**2, rate)  # running E[x²]
    policy.value_mean.copy_(torch.lerp(old_mean, mean, rate))
    policy.value_std.copy_((second - policy.value_mean.double() ** 2).clamp(min=MIN_VALUE_STD**2).sqrt())
    if not fresh:
        head.weight.mul_(old_std / policy.value_std)  # (1, D)
        head.bias.copy_((old_std * head.bias + old_mean - policy.value_mean) / policy.value_std)  # (1,)
    return fresh


# one update
def micro_batches(lengths, budget_tok):
    """Group row indices, longest first, so that rows × longest <= budget_tok (or one row); each row occurs once."""
    groups = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not groups or (len(groups[-1]) + 1) * lengths[groups[-1][0]] > budget_tok:
            groups.append([])
        groups[-1].append(row)
    return groups


def select_rows(batch, rows):
    """Take rows of every tensor in the batch, cut after the longest row's last action: what follows is padding."""
    length = max(batch["lengths"][rows].tolist(), default=0)
    return {name: x[rows][:, :length] if x.dim() == 2 else x[rows] for name, x in batch.items()}


def old_logprobs(experience):
    """Return the log-probabilities (B, T) that ratios start from: of the policy that sampled, or of a newer one."""
    stale = experience.proximal_logprobs
    return experience.behaviour_logprobs if stale is None else stale


def build_batch(policy, experience, values, advantages, returns, weights):
    """Gather what the losses read: tensors with one row per episode; values in the head's units, none if returns is None."""
    mask, mean, std = experience.action_mask, policy.value_mean, policy.value_std  # (B, T), (), ()
    batch = {
        "tokens": experience.tokens,
        "action_mask": mask,
        "behaviour_logprobs": masked(experience.behaviour_logprobs, mask),
        "old_logprobs": masked(old_logprobs(experience), mask),
        "reference_logprobs": masked(experience.reference_logprobs, mask),
        "advantages": advantages,
        "weights": weights,
        "lengths": (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1),  # (B,), to the last action
    }
    if returns is not None:
        batch |= {"old_values": masked((values - mean) / std, mask), "returns": masked((returns - mean) / std, mask)}
    return select_rows(batch, batch["lengths"].nonzero().squeeze(1))  # a row without an action teaches nothing


def batch_metrics(experience, advantages, returns, weights):
    """Describe the batch of all ranks before anything is learnt from it; returns may be None. A collective."""
    mask = experience.action_mask  # (B, T)
    kl = masked(kl_k3(experience.behaviour_logprobs, experience.reference_logprobs), mask)  # (B, T)
    mismatch = masked(kl_k3(experience.behaviour_logprobs, old_logprobs(experience)), mask)  # (B, T)
    sums = torch.stack([kl.sum(), mismatch.sum(), mask.any(1).sum(), mask.sum()])  # (4,)
    kl_sum, mismatch_sum, sequences, actions = all_sum(sums.double()).tolist()
    _, error_std = masked_moments(advantages, mask)  # A = return - V
    _, return_std = masked_moments(returns, mask) if returns is not None else (0.0, 0.0)
    return {
        "policy/kl_ref": kl_sum / max(sequences, 1),  # nats per sequence, of the policy that sampled
        "value/explained_variance": float(1 - (error_std / return_std) ** 2) if return_std > 0 else 0.0,
        "policy/mismatch_kl": mismatch_sum / max(actions, 1),  # nats per token, sampling policy || policy before the update
    } | duration_metrics(experience.durations, weights)


def compute_loss(policy, batch, normaliser, *, temperature, clip_eps, value_clip_eps, value_coef, entropy_coef, kl_coef,
                 dual_clip, detach_value):
    """Compute loss = policy + c_v value - c_e entropy + c_KL KL(π || reference); micro-batches and ranks add up."""
    mask = batch["action_mask"]  # (B, T)
    logprobs, entropy, values = evaluate(policy, batch["tokens"], mask, temperature, detach_value)  # (B, T)
    policy_term, policy_metrics = policy_loss(logprobs, batch["old_logprobs"], batch["advantages"], batch["weights"],
                                              mask, clip_eps, normaliser, dual_clip, batch["behaviour_logprobs"])
    value_term, value_metrics = value_loss(values, batch.get("old_values"), batch.get("returns"), mask, value_clip_eps,
                                           normaliser)
    entropy_term = token_mean(entropy, mask, normaliser)
    kl_term = token_mean(kl_k3(logprobs, batch["reference_logprobs"]), mask, normaliser)
    loss = policy_term + value_coef * value_term - entropy_coef * entropy_term + kl_coef * kl_term
    metrics = {"update/loss": loss, "policy/loss": policy_term, "policy/entropy": entropy_term, "policy/kl_k3": kl_term,
               "value/loss": value_term, "value/clip_frac": value_metrics["clip_frac"]}
    metrics |= {f"policy/{name}": x for name, x in policy_metrics.items()}
    return loss, {name: x.detach() for name, x in metrics.items()}


def backbone_grad_norms(policy, loss_fn, batch):
    """Measure the gradients of the policy term and of the value term on the backbone they share. A collective.

    On each rank's longest episode, then the mean over ranks: it fits in memory and no micro-batch budget changes it.
    A sharded policy is not measured.
    """
    if isinstance(policy, FSDPModule):
        return {}
    head = set(policy.value_head.parameters())
    backbone = [p for p in policy.parameters() if p.requires_grad and p not in head]
    norms = batch["weights"].new_zeros(3)  # policy, value, ranks
    if len(batch["lengths"]):
        episode = select_rows(batch, batch["lengths"].argmax().view(1))
        loss_fn = partial(loss_fn, normaliser=episode["action_mask"].sum(), entropy_coef=0.0, kl_coef=0.0)
        policy_term, _ = loss_fn(batch=episode, value_coef=0.0)
        value_term, _ = loss_fn(batch=episode | {"weights": 0 * episode["weights"]})
        for i, term in enumerate((policy_term, value_term)):
            norms[i] = get_total_norm(torch.autograd.grad(term, backbone, materialize_grads=True))
        norms[2] = 1
    policy_norm, value_norm, ranks = all_sum(norms).tolist()
    return {"policy/backbone_grad_norm": policy_norm / max(ranks, 1), "value/grad_norm": value_norm / max(ranks, 1)}


def train_minibatch(policy, optimizer, loss_fn, batch, micro_batch_tok, max_grad_norm):
    """Take one optimizer step on the minibatch of all ranks; return metrics, empty without a token. A collective."""
    normaliser = all_sum(batch["action_mask"].sum())  # valid tokens of the minibatch on all ranks
    if normaliser == 0:
        return {}
    optimizer.zero_grad()
    sums, ratio_max = normaliser.new_zeros(len(STEP_METRICS), dtype=torch.float64), normaliser.new_zeros(1).float()
    parts = [select_rows(batch, rows) for rows in micro_batches(batch["lengths"].tolist(), micro_batch_tok)]
    for part in even_out(policy, parts, batch):  # no collective in here, but those of FSDP
        loss, metrics = loss_fn(part, normaliser)
        loss.backward()
        sums += torch.stack([metrics[name] for name in STEP_METRICS])
        ratio_max = ratio_max.maximum(metrics["policy/ratio_max"])
    sum_gradients(policy)  # not the mean: the normaliser is global
    grad_norm = clip_gradients(policy, max_grad_norm)  # before clipping
    metrics = dict(zip(STEP_METRICS, all_sum(sums).tolist(), strict=True))
    skipped = not isfinite(grad_norm + metrics["update/loss"])  # the same on all ranks
    if not skipped:
        optimizer.step()
    optimizer.zero_grad()
    return metrics | {"policy/ratio_max": float(all_max(ratio_max)), "policy/grad_norm": grad_norm, "skipped": skipped}


def update(policy, optimizer, experience, *, epochs, minibatches, micro_batch_tok, gamma, gae_lambda, clip_eps,
           value_clip_eps, value_coef, entropy_coef, kl_coef, max_grad_norm, temperature, duration_weight="none",
           duration_cap=None, advantage="gae", whitening="global", normalise_returns=True, value_stats_rate=0.1,
           detach_value=False, dual_clip=None, failure_weight=1.0, generator=None, guard=None):
    """Update the policy on one batch: advantages and weights once, then epochs × minibatches optimizer steps.

    micro_batch_tok: tokens, pads included, in one forward pass; value_clip_eps: in the head's units; advantage: gae, or group
    (no whitening, no value loss, the value head stays as it is); whitening: global or isolate; failure_weight: of the policy
    term of failed samples; generator: a CPU torch.Generator for the order, in the same state on all ranks; guard: the
    caller's NonFiniteGuard.
    Returns a dict of floats, equal on all ranks, means over the steps taken. A collective.
    """
    if whitening not in ("global", "isolate") or (whitening == "isolate" and experience.failed is None):
        raise ValueError(f"whitening {whitening} must be global, or isolate with experience.failed given")
    if advantage not in ("gae", "group") or (advantage == "group" and experience.group_index is None):
        raise ValueError(f"advantage {advantage} must be gae, or group with experience.group_index given")
    mask, values = experience.action_mask, experience.values  # (B, T)
    weights = duration_weights(experience.durations, duration_weight, experience.task_index, duration_cap,
                               experience.inverse_inclusion)  # (B,)
    if failure_weight != 1:
        weights = torch.where(experience.failed, failure_weight * weights, weights)
    if advantage == "group":
        advantages, returns = group_advantages(experience.rewards, mask, experience.group_index), None  # (B, T)
    else:
        advantages, returns = compute_gae(experience.rewards, values, mask, gamma, gae_lambda)  # (B, T)
    metrics = batch_metrics(experience, advantages, returns, weights)
    if returns is not None:
        fresh = normalise_returns and update_value_statistics(policy, returns, mask, value_stats_rate)
        values = policy.value_mean.expand(mask.shape) if fresh else values  # (B, T): a new head predicts the mean
        advantages = masked_whiten(advantages, mask, experience.failed if whitening == "isolate" else None)  # (B, T)
    batch = build_batch(policy, experience, values, advantages, returns, weights)
    loss_fn = partial(compute_loss, policy, temperature=temperature, clip_eps=clip_eps, value_clip_eps=value_clip_eps,
                      value_coef=value_coef, entropy_coef=entropy_coef, kl_coef=kl_coef, dual_clip=dual_clip,
                      detach_value=detach_value)
    metrics |= backbone_grad_norms(policy, loss_fn, batch)
    guard, steps = guard or NonFiniteGuard(), []
    counts = gather([len(batch["weights"])])  # rows of every rank: minibatches are drawn from all of them together
    first = sum(counts[: rank_and_world()[0]])
    for _ in range(epochs):
        for rows in torch.randperm(sum(counts), generator=generator).tensor_split(minibatches):
            own = rows[(rows >= first) & (rows < first + len(batch["weights"]))] - first
            step = train_minibatch(policy, optimizer, loss_fn, select_rows(batch, own), micro_batch_tok, max_grad_norm)
            if step:
                guard.record(step["skipped"])
                steps.append(step)
    taken = [step for step in steps if not step["skipped"]]
    for name in (*STEP_METRICS, "policy/grad_norm"):
        metrics[name] = sum(step[name] for step in taken) / max(len(taken), 1)
    metrics["policy/ratio_max"] = max((step["policy/ratio_max"] for step in taken), default=0.0)
    return metrics | {"update/skipped": float(len(steps) - len(taken))}
