"""Duration weights: how much the policy term of a sample counts, by the time that its program ran.

Which weight is right depends on how a batch is collected (docs/duration.md):

    sync     wait for all programs of a batch                                     none: nothing is over-represented
    async    every finished program is used sooner or later                       none: as many slow ones as were started
    restart  the first B that finish after an update, the others are dropped      ipw: fast ones are over-represented

The article's weight, `mean`, is exact where each worker's time is split by the policy's probabilities.
"""

import math
from dataclasses import dataclass

import torch

from ranks import all_max, all_sum, gather

MODES = ("none", "mean", "log", "ipw")
COLLECT_MODES = ("sync", "async", "restart")
SLOWEST_FRAC = 0.05  # of the finished runs: they stand for dropped runs that outlasted all of them


def duration_weights(durations, mode, task_index=None, cap=None, inverse=None):
    """Compute the weight of each sample's policy term from its running time.

    none  w = 1
    mean  w = Δt / mean(Δt)
    log   w = log(1 + Δt) / mean(log(1 + Δt))
    ipw   w = 1 / P(a run of this length is collected) = inverse, see inverse_inclusion
    durations (B,) in seconds; task_index (B,): means over each task's own samples, of all ranks; cap: w <= cap, then
    renormalised to mean 1, except ipw: its mean is 1 over many batches, not in each. Raises ValueError if any rank has a
    duration that is zero, negative, NaN or infinite. A collective.
    """
    if mode not in MODES or (mode == "ipw" and inverse is None):
        raise ValueError(f"duration weight {mode} must be one of {', '.join(MODES)}; ipw with inverse given")
    if cap is not None and not cap > 0:
        raise ValueError(f"duration cap {cap} must be positive, or None for no cap")
    durations = durations.double()  # (B,)
    refused = ~(durations.isfinite() & (durations > 0))  # (B,)
    if all_sum(refused.sum()) > 0:
        raise ValueError(f"durations must be positive and finite on every rank; refused here: {durations[refused]}")
    group = torch.zeros_like(durations, dtype=torch.long) if task_index is None else task_index.long()  # (B,)
    if mode == "ipw":
        return inverse.double().clamp(max=cap or math.inf).float()  # (B,)
    weights = {"none": torch.ones_like(durations), "mean": durations, "log": durations.log1p()}[mode]  # (B,)
    weights = weights / group_mean(weights, group)
    if cap is not None:
        weights = (capped := weights.clamp(max=cap)) / group_mean(capped, group)
    return weights.float()  # fp64 until here, so that equal durations give exactly 1


def group_mean(x, group):
    """Return for each sample (B,) the mean of x (B,) over its group (B,), on all ranks. A collective."""
    sums = x.new_zeros(2, int(all_max(group)) + 1)  # (2, groups)
    total, count = all_sum(sums.index_add(1, group, torch.stack([x, torch.ones_like(x)])))
    return (total / count)[group]


@dataclass(frozen=True)
class Window:
    """What was seen while one batch was filled by the first runs to finish: seconds that each run had run at its end."""

    finished_s: tuple[float, ...]  # of the batch
    dropped_s: tuple[float, ...]  # were still running, or finished too late


def inverse_inclusion(windows: list[Window]) -> list[float]:
    """Return for the finished runs of the last window 1 / P(such a run is collected), divided by its mean over windows.

    A dropped run is a censored observation of a duration, so this is the Kaplan-Meier estimator, as redistribution to the
    right (Efron 1967): every run starts with mass 1; a dropped one leaves its mass in equal parts to those that ran
    longer, the last ones to the slowest SLOWEST_FRAC that finished: to the slowest alone, it would drown its batch. It
    needs no model of the collection, and the end of a window may depend on the runs. The mean is over all windows: a batch
    without slow runs has to count less than one with them.
    """
    runs = [(d, 0, w) for w, window in enumerate(windows) for d in window.finished_s]  # finished before dropped, if tied
    runs += [(d, 1, w) for w, window in enumerate(windows) for d in window.dropped_s]
    order = sorted(range(len(runs)), key=lambda i: runs[i][:2])
    mass, masses = 1.0, {}
    for place, i in enumerate(order):
        longer = len(order) - 1 - place
        if not runs[i][1]:
            masses[i] = mass
        elif longer:
            mass *= 1 + 1 / longer
    slowest = list(masses)[-math.ceil(SLOWEST_FRAC * len(masses)) :]
    last = {i for i in masses if runs[i][0] >= runs[slowest[0]][0]}  # with ties
    lost = len(runs) - sum(masses.values())
    mean = len(runs) / max(len(masses), 1)
    weights = {i: (m + (lost / len(last) if i in last else 0.0)) / mean for i, m in masses.items()}
    return [weights[i] for i in sorted(masses) if runs[i][2] == len(windows) - 1]


def duration_metrics(durations, weights) -> dict[str, float]:
    """Describe how durations (B,) and weights (B,) of all ranks share the batch out. A collective.

    By quarter of the durations, fastest first: share of the samples (ties go to the faster quarter), and of the weight.
    """
    pairs = gather(list(zip(durations.tolist(), weights.tolist(), strict=True)))
    if not pairs:
        return {}
    durations, weights = torch.tensor(pairs, dtype=torch.float64).T.contiguous()  # (all,) each
    bounds = durations.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    quarter = torch.bucketize(durations, bounds)  # (all,)
    metrics = {
        "duration/weight_max": float(weights.max()),
        "duration/effective_sample_size": float(weights.sum() ** 2 / weights.square().sum().clamp(min=1e-12)),
    }
    for i in range(4):
        metrics[f"duration/q{i + 1}_count_share"] = float((quarter == i).double().mean())
        metrics[f"duration/q{i + 1}_weight_share"] = float(weights[quarter == i].sum() / weights.sum())
    return metrics


def describe_mismatch(collect: str, weight: str) -> str:
    """Return why a weight does not fit a way of collecting, "" where it does."""
    if collect == "restart" and weight == "none":
        return "restart collects too many fast programs: ipw corrects that"
    if collect == "restart" and weight in ("mean", "log"):
        return f"{weight} corrects the bias of restart only roughly: ipw measures it"
    if collect != "restart" and weight in ("mean", "log"):
        return f"{collect} has no bias towards fast programs: {weight} over-corrects, programs that fail fast hardly count"
    return ""
