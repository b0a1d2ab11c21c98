"""What a score is worth beside people's: medals, above median, HumanRank.

All of it is about a competition's private test split, so `award` has nothing to say of a twin or of the reward split.
"""

from tasks.task import Task

MEDALS = ("gold", "silver", "bronze")


def award(task: Task, score: float) -> dict[str, str | bool] | None:
    """Return {"medal": gold | silver | bronze | "", "above_median": bool} of a score on real test data, else None.

    Like MLE-bench it rounds the score to the five decimals of the leaderboards: a perfect log loss of 2e-16 is 0.
    """
    if task.data != "real" or task.split != "test" or not task.thresholds:
        return None
    score = round(score, 5)
    above = is_better(score, task.thresholds["median"], task.higher_is_better)
    return {"medal": medal(score, task.thresholds, task.higher_is_better), "above_median": above}


def is_better(score: float, other: float, higher_is_better: bool) -> bool:
    """Tell whether score beats other; equal scores do not beat each other."""
    return score > other if higher_is_better else score < other


def medal(score: float, thresholds: dict[str, float], higher_is_better: bool) -> str:
    """Return the best medal whose threshold the score reaches (equal is enough), or ""."""
    return next((name for name in MEDALS if not is_better(thresholds[name], score, higher_is_better)), "")


def medal_ranks(teams: int) -> dict[str, int]:
    """Return the last place that wins each medal among so many teams, by Kaggle's rule."""
    gold = 10 + teams // 500  # 10 + 0.2%
    if teams < 100:
        ranks = teams // 10, teams // 5, 2 * teams // 5
    elif teams < 250:
        ranks = 10, teams // 5, 2 * teams // 5
    elif teams < 1000:
        ranks = gold, 50, 100
    else:
        ranks = gold, teams // 20, teams // 10
    return {name: max(1, rank) for name, rank in zip(MEDALS, ranks, strict=True)}


def leaderboard_thresholds(leaderboard: list[float], higher_is_better: bool) -> dict[str, float]:
    """Return the score of the last place of each medal on a leaderboard, in any order. Raises ValueError if it is empty."""
    if not leaderboard:
        raise ValueError("a leaderboard needs at least one score")
    ranked = sorted(leaderboard, reverse=higher_is_better)
    return {name: ranked[rank - 1] for name, rank in medal_ranks(len(ranked)).items()}


def human_rank(score: float, leaderboard: list[float], higher_is_better: bool) -> float:
    """Return MLE-Dojo's HumanRank, (total - position + 1) / total, in [0, 1]; 0 behind all, 1 for the first place.

    The position is one more than the number of better scores, so that a tie shares the better place. Raises ValueError if
    the leaderboard is empty.
    """
    if not leaderboard:
        raise ValueError("a leaderboard needs at least one score")
    position = 1 + sum(is_better(other, score, higher_is_better) for other in leaderboard)
    return (len(leaderboard) - position + 1) / len(leaderboard)
