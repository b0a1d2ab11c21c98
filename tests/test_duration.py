"""duration.py: inverse probabilities of collection, shares by quarter, warnings for pairs that do not match."""

import pytest
import torch

from duration import COLLECT_MODES, MODES, Window, describe_mismatch, duration_metrics, duration_weights, inverse_inclusion


def test_a_dropped_run_leaves_its_weight_to_those_that_ran_longer():
    # 1 | 2 dropped: its mass to the two longer ones | 4 | 5 dropped, nobody ran longer: to the slowest that finished
    weights = inverse_inclusion([Window((1.0, 4.0), (2.0, 5.0))])
    assert weights == pytest.approx([1 * 2 / 4, (1.5 + 1.5) * 2 / 4])
    assert inverse_inclusion([Window((3.0, 1.0), ())]) == [1.0, 1.0]
    assert inverse_inclusion([Window((), (1.0,))]) == []


def test_only_the_last_window_is_answered_and_all_are_used():
    slow, fast = Window((1.0, 9.0), (3.0, 3.0)), Window((1.0, 1.0), (2.0, 2.0))
    together = inverse_inclusion([slow, fast])
    assert together[0] == together[1] < 1  # the batch without slow runs counts less


def test_ipw_takes_the_weights_as_they_are_and_caps_them():
    inverse = torch.tensor([0.5, 3.0, 0.7])
    torch.testing.assert_close(duration_weights(torch.ones(3), "ipw", inverse=inverse), inverse)
    capped = duration_weights(torch.ones(3), "ipw", cap=1.0, inverse=inverse)
    torch.testing.assert_close(capped, torch.tensor([0.5, 1.0, 0.7]) / (2.2 / 3))


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
