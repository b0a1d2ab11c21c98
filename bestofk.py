"""Statistics of n programs: how many are valid, and what the best of k is worth, chosen on one split, reported on another."""

import math
import statistics

from reward import Reward
from tasks import Task


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased probability that one of k programs is valid when c of n were (Codex, 2107.03374).

    Raises ValueError for k > n.
    """
    if not 0 < k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} needs 0 < k <= n and 0 <= c <= n; n is {n}, c is {c}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def expected_best_of_k(chosen_by: list, reported: list[float], k: int) -> float:
    """Return E[reported score of the sample that is best by `chosen_by` among k of n], exactly.

    Σ_i s_(i) C(i-1, k-1) / C(n, k), s the reported scores in ascending order of chosen_by. Ties are kept in the order given.
    Raises ValueError for k > n.
    """
    n = len(chosen_by)
    if not 0 < k <= n:
        raise ValueError(f"best of {k} needs at least that many samples; there are {n}")
    order = sorted(range(n), key=lambda i: (chosen_by[i], i))
    return sum(reported[i] * (math.comb(rank, k - 1) / math.comb(n, k)) for rank, i in enumerate(order))


def order_of(task: Task, reward: Reward) -> tuple[float, float]:
    """Return what the samples are ordered by: the reward, as a penalised program may not be chosen; then the score.

    Rewards are clipped: of programs that are worse than the worst score of the scale, the one with the best score is best.
    """
    if reward.score is None:
        return reward.total, -math.inf
    return reward.total, reward.score if task.higher_is_better else -reward.score


def best_index(order: list) -> int:
    """Return the index of the largest; of equal ones the last, as expected_best_of_k has it."""
    return max(range(len(order)), key=lambda i: (order[i], i))


def summarise(task: Task, order: list, scores: list[float | None]) -> dict:
    """Return valid fraction, mean, median and best of the valid scores, and the expected best of k."""
    n, valid = len(scores), [s for s in scores if s is not None]
    filled = [task.baseline if s is None else s for s in scores]
    ks = [k for k in (2**i for i in range(20)) if k < n] + [n]
    return {
        "valid_frac": len(valid) / n,
        "mean": statistics.fmean(valid) if valid else None,
        "median": statistics.median(valid) if valid else None,
        "best": filled[best_index(order)],
        "best_of_k": {str(k): expected_best_of_k(order, filled, k) for k in ks},
        "valid_at_k": {str(k): pass_at_k(n, len(valid), k) for k in ks},
    }
