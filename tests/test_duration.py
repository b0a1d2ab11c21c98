"""duration.py: inverse probabilities of collection, shares by quarter, warnings for pairs that do not match."""

import importlib.util

import pytest
import torch
from conftest import ROOT

from duration import COLLECT_MODES, MODES, Window, describe_mismatch, duration_metrics, duration_weights, inverse_inclusion


def test_a_dropped_run_leaves_its_weight_to_those_that_ran_longer():
    # 1 | 2 dropped: its mass to the two longer ones | 4 | 5 dropped, nobody ran longer: to the slowest that finished
    weights = inverse_inclusion([Window((1.0, 4.0), (2.0, 5.0))])
    assert weights == pytest.approx([1 * 2 / 4, (1.5 + 1.5) * 2 / 4])
    assert inverse_inclusion([Window((3.0, 1.0), ())]) == [1.0, 1.0]
    assert inverse_inclusion([Window((), (1.0,))]) == []


def test_runs_that_outlasted_all_finished_ones_leave_their_weight_to_the_slowest_twentieth():
    weights = inverse_inclusion([Window(tuple(range(1, 41)), (50.0,) * 40)])
    assert weights == pytest.approx([0.5] * 38 + [10.5] * 2)
    weights = inverse_inclusion([Window((*range(1, 31), *[40] * 10), (50.0,) * 40)])  # ties of those share, too
    assert weights == pytest.approx([0.5] * 30 + [2.5] * 10)


def test_only_the_last_window_is_answered_and_all_are_used():
    slow, fast = Window((1.0, 9.0), (3.0, 3.0)), Window((1.0, 1.0), (2.0, 2.0))
    together = inverse_inclusion([slow, fast])
    assert together[0] == together[1] < 1  # the batch without slow runs counts less


def test_ipw_takes_the_weights_as_they_are_and_caps_them():
    inverse = torch.tensor([0.5, 3.0, 0.7])
    torch.testing.assert_close(duration_weights(torch.ones(3), "ipw", inverse=inverse), inverse)
    capped = duration_weights(torch.ones(3), "ipw", cap=1.0, inverse=inverse)
    torch.testing.assert_close(capped, torch.tensor([0.5, 1.0, 0.7]))  # a mean of 1 in each batch would undo the correction


def test_quarters_share_out_samples_and_weight():
    durations = torch.arange(1.0, 9.0)
    metrics = duration_metrics(durations, durations / durations.mean())
    assert [metrics[f"duration/q{i}_count_share"] for i in (1, 2, 3, 4)] == [0.25] * 4
    assert metrics["duration/q1_weight_share"] == pytest.approx(3 / 36)
    assert metrics["duration/q4_weight_share"] == pytest.approx(15 / 36)
    assert metrics["duration/weight_max"] == pytest.approx(8 / 4.5)
    assert duration_metrics(torch.zeros(0), torch.zeros(0)) == {}


def test_pairs_that_do_not_match_are_named():
    silent = [(c, w) for c in COLLECT_MODES for w in MODES if not describe_mismatch(c, w)]
    assert silent == [("sync", "none"), ("sync", "ipw"), ("async", "none"), ("async", "ipw"), ("restart", "ipw")]


def test_the_simulation_gives_the_published_shares(monkeypatch):
    """algorithm.md's table: share of the fast one of two kinds of program, by count and weighted by its running time."""
    path = ROOT / "bench" / "duration_bias.py"
    module = importlib.util.module_from_spec(specification := importlib.util.spec_from_file_location("duration_bias", path))
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "BATCHES", 200)
    shares = module.simulate()
    published = {"sync": (0.5, 0.09), "async": (0.498, 0.09), "restart": (0.897, 0.466), "window": (0.632, 0.147),
                 "split": (0.909, 0.5)}  # fmt: skip
    for mode, (count, weighted) in published.items():
        assert shares[mode]["none"] == pytest.approx(count, abs=0.02), mode
        assert shares[mode]["mean"] == pytest.approx(weighted, abs=0.02), mode
    assert shares["restart"]["ipw"] == pytest.approx(0.5, abs=0.02)
    # noisier; the weight of all runs that outlast the finished ones on the slowest alone would leave an ess of .04
    assert shares["jitter"]["ipw"] == pytest.approx(0.5, abs=0.03) and shares["jitter"]["ess"] > 0.2
