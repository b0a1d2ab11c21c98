"""tasks/medals.py: Kaggle's ranks, ties, MLE-Dojo's HumanRank, and no medal for a twin."""

import dataclasses

import pytest

from tasks import find_task, load_task, read_published, task_names
from tasks.medals import award, human_rank, leaderboard_thresholds, medal, medal_ranks

GOLD_TO_BRONZE = {"gold": 0.9, "silver": 0.8, "bronze": 0.7, "median": 0.5}


def test_ranks_by_number_of_teams():
    expected = {
        4: (1, 1, 1), 50: (5, 10, 20), 99: (9, 19, 39), 100: (10, 20, 40), 249: (10, 49, 99), 250: (10, 50, 100),
        462: (10, 50, 100), 999: (11, 50, 100), 1000: (12, 50, 100), 2225: (14, 111, 222),
    }  # fmt: skip
    assert {teams: tuple(medal_ranks(teams).values()) for teams in expected} == expected


def test_equal_to_a_threshold_is_enough_in_both_directions():
    scores = [0.91, 0.9, 0.85, 0.8, 0.7, 0.69]
    assert [medal(s, GOLD_TO_BRONZE, True) for s in scores] == ["gold", "gold", "silver", "silver", "bronze", ""]
    losses = {"gold": 0.0, "silver": 0.1, "bronze": 0.2}
    assert [medal(s, losses, False) for s in (0.0, 1e-9, 0.1, 0.2, 0.3)] == ["gold", "silver", "silver", "bronze", ""]


def test_human_rank():
    board = [0.5, 0.9, 0.7, 0.7]
    assert [human_rank(s, board, True) for s in (1.0, 0.9, 0.7, 0.6, 0.1)] == [1.0, 1.0, 0.75, 0.25, 0.0]
    assert [human_rank(s, board, False) for s in (0.4, 0.5, 0.7, 0.95)] == [1.0, 1.0, 0.75, 0.0]
    with pytest.raises(ValueError, match="at least one score"):
        human_rank(0.5, [], True)


def test_thresholds_of_a_leaderboard_are_the_scores_of_the_last_medal_places():
    board = [i / 100 for i in range(100)]
    assert leaderboard_thresholds(board, True) == {"gold": 0.9, "silver": 0.8, "bronze": 0.6}
    assert leaderboard_thresholds(board, False) == {"gold": 0.09, "silver": 0.19, "bronze": 0.39}
    scores = [s for s in board for _ in range(2)]  # every score twice
    assert all(medal(s, leaderboard_thresholds(scores, True), True) == "gold" for s in (0.95, 0.99))


def test_medals_are_claimed_on_the_private_test_of_real_data_only(tmp_path):
    twin = load_task("random-pizza", tmp_path, "test")
    assert twin.thresholds == {} and award(twin, 1.0) is None
    real = dataclasses.replace(twin, data="real", thresholds=GOLD_TO_BRONZE)
    assert award(real, 0.85) == {"medal": "silver", "above_median": True}
    assert award(real, 0.5) == {"medal": "", "above_median": False}  # the median itself is not above it
    assert award(dataclasses.replace(real, split="reward"), 1.0) is None
    assert award(dataclasses.replace(twin, thresholds=GOLD_TO_BRONZE), 1.0) is None
    assert award(load_task("hello-world", tmp_path / "hello", "test"), 1.0) is None


@pytest.mark.parametrize("name", [name for name in task_names() if find_task(name).ID])
def test_thresholds_and_published_results_are_ordered_as_the_metric_says(name):
    task = find_task(name)
    thresholds, published = (read_published(table, task.ID) for table in ("thresholds.csv", "published.csv"))
    ordered = [thresholds[key] for key in ("gold", "silver", "bronze", "median")]
    assert ordered == sorted(ordered, reverse=task.METRIC.higher_is_better)
    assert medal(thresholds["gold"], thresholds, task.METRIC.higher_is_better) == "gold"
    assert 0 <= published["qwen2.5_3b_rl"] <= 1.1
