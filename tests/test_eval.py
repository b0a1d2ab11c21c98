"""eval.py: unbiased statistics, chosen on one split and reported on the other."""

import contextlib
import itertools
import random
import statistics
from types import SimpleNamespace

import pytest
from test_own_task import own_wine
from test_rollout import FakeSandbox

import eval
from bestofk import best_index, expected_best_of_k, order_of, pass_at_k, summarise
from checkpoint import UsageError
from results import table
from reward import Reward

SCORES = [0.0, 0.2, 0.5, 1.0]
TASK = SimpleNamespace(baseline=0.5)


@pytest.mark.parametrize(("n", "c", "k", "value"), [(10, 3, 5, 0.916667), (5, 0, 5, 0.0), (5, 5, 1, 1.0), (4, 1, 4, 1.0)])
def test_pass_at_k(n, c, k, value):
    """Case 37."""
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_pass_at_k_refuses_what_makes_no_sense(n, c, k):
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(("k", "value"), [(1, 0.425), (2, 0.7), (3, 0.875), (4, 1.0)])
def test_expected_best_of_k(k, value):
    assert expected_best_of_k(SCORES, SCORES, k) == pytest.approx(value)


def test_best_of_k_is_the_mean_over_all_subsets_of_what_the_chosen_one_scores():
    rng = random.Random(0)
    chosen_by, reported = [rng.random() for _ in range(7)], [rng.random() for _ in range(7)]
    for k in range(1, 8):
        subsets = itertools.combinations(range(7), k)
        expected = statistics.fmean(reported[max(s, key=lambda i: chosen_by[i])] for s in subsets)
        assert expected_best_of_k(chosen_by, reported, k) == pytest.approx(expected)
    with pytest.raises(ValueError):
        expected_best_of_k(chosen_by, reported, 8)


def test_failed_programs_have_no_score_and_count_as_the_constant_prediction():
    result = summarise(TASK, [-10.0, 0.2, 0.4, -9.5], [None, 0.6, 0.7, None])
    assert result["valid_frac"] == 0.5 and result["mean"] == pytest.approx(0.65) and result["best"] == 0.7
    assert result["best_of_k"]["1"] == pytest.approx((0.5 + 0.6 + 0.7 + 0.5) / 4)
    assert result["best_of_k"]["4"] == 0.7


def test_the_choice_is_made_by_the_reward_not_by_the_reported_split():
    result = summarise(TASK, [0.1, 0.9], [0.99, 0.6])
    assert result["best"] == 0.6 and result["best_of_k"]["2"] == 0.6


def test_thousands_of_samples_do_not_overflow():
    scores = [i / 2000 for i in range(2000)]
    result = summarise(TASK, scores, scores)
    assert result["best_of_k"]["2000"] == pytest.approx(0.9995) and result["best_of_k"]["1"] == pytest.approx(0.49975)


def test_of_equal_rewards_every_row_takes_the_same_sample():
    result = summarise(TASK, [0.3, 0.3, 0.1], [0.6, 0.9, 0.7])
    assert result["best"] == result["best_of_k"]["3"]


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_of_rewards_at_the_clip_the_better_score_is_chosen(higher_is_better):
    task = SimpleNamespace(baseline=0.25, higher_is_better=higher_is_better)
    sign = 1 if higher_is_better else -1
    rewards = [Reward(-1.0, sign * score) for score in (-4.0, -2.0, -3.0)] + [Reward(-1.5, sign * 1.0), Reward(-9.0)]
    order = [order_of(task, reward) for reward in rewards]
    assert sorted(range(5), key=order.__getitem__) == [4, 3, 0, 2, 1]
    scores = [reward.score for reward in rewards]
    result = summarise(task, order, scores)
    assert result["best"] == result["best_of_k"]["5"] == sign * -2.0 == scores[best_index(order)]


def test_zero_shot_reads_real_data(tmp_path, monkeypatch, capsys):
    seen = []

    def evaluate(policy, collector, test_task, n):
        seen.extend(collector.tasks)
        return {"n": n, "val": {"valid_frac": 0.5}, "mean_reward": 0.0}, None

    monkeypatch.setattr(eval, "load_start", lambda config, tasks: None)
    monkeypatch.setattr(eval, "set_threads", lambda config: None)
    monkeypatch.setattr(eval, "build_sandbox", lambda config: contextlib.nullcontext(FakeSandbox()))
    monkeypatch.setattr(eval, "evaluate_policy", evaluate)
    arguments = ["--zero-shot", str(own_wine(tmp_path)), "--model", "tiny", "--samples", "2"]
    assert eval.main([*arguments, "--data-dir", str(tmp_path / "data")]) == 0
    assert [(task.name, task.data) for task in seen] == [("wine", "real")] and "wine: 1 of 2 valid" in capsys.readouterr().out
    for bad, reason in ((arguments, "--data-dir"), (["run", "--data-dir", "x"], "go with --zero-shot")):
        with pytest.raises(UsageError, match=reason):
            eval.main(bad)


def test_nothing_valid_is_reported_as_such():
    result = summarise(TASK, [-10.0, -9.0], [None, None])
    assert result["valid_frac"] == 0 and result["mean"] is None and result["best"] == 0.5
    one = {"n": 2, "mean_reward": -9.5, "val": result}
    text = table({"task": "t", "data": "twin", "metric": "auc", "temperature": 0.7, "start": one, "trained": one})
    assert "–" in text and "twin" in text
