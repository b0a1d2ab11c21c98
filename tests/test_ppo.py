"""ppo.py against hand-computed values, an independent numpy implementation from the papers, and invariants."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from toy import NAN, SETTINGS, ToyPolicy, close, parameters, sample_experience, updated

import ppo

# advantages

@pytest.mark.parametrize(("gamma", "expected"), [(1.0, [.41725, .755, .9]), (0.99, [.3990957, .74545, .9])])
@pytest.mark.parametrize("pad", [(7.0, 100.0), (NAN, 1e6), (1e6, NAN)])
def test_gae_by_hand(gamma, expected, pad):  # case 1
    rewards, values = torch.tensor([[pad[0], 0, 0, 1, pad[0]]]), torch.tensor([[pad[1], .5, .2, .1, pad[1]]])
    mask = torch.tensor([[0, 1, 1, 1, 0]]).bool()
    advantages, returns = ppo.compute_gae(rewards, values, mask, gamma, 0.95)
    close(advantages, [[0, *expected, 0]])
    close(returns, [[0, *(a + v for a, v in zip(expected, [.5, .2, .1], strict=True)), 0]])


@pytest.mark.parametrize("junk", [9.0, NAN, 1e6])
def test_gae_skips_masked_tokens_inside_a_response(junk):  # case 2
    rewards, values = torch.tensor([[0, 0, junk, 1]]), torch.tensor([[.5, junk, 9, .1]])
    advantages, returns = ppo.compute_gae(rewards, values, torch.tensor([[1, 0, 0, 1]]).bool(), 1.0, 0.95)
    close(advantages, [[.455, 0, 0, .9]])
    close(returns, [[.955, 0, 0, 1]])


def test_gae_keeps_float64_and_lifts_bfloat16():
    mask = torch.ones(2, 3, dtype=torch.bool)
    for given, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        x = torch.randn(2, 3, dtype=given)
        assert [y.dtype for y in ppo.compute_gae(x, x, mask, 1.0, 0.95)] == [expected] * 2


def test_whitening_by_hand():  # case 6
    x, mask = torch.tensor([[NAN, 1, 2, 1e6], [3, NAN, 4, 1e6]]), torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]]).bool()
    close(ppo.masked_whiten(x, mask), [[0, -1.34164, -.44721, 0], [.44721, 0, 1.34164, 0]], atol=1e-5)


@pytest.mark.parametrize("valid", [0, 1])
def test_whitening_fewer_than_two_tokens_is_only_centred(valid):  # case 6
    mask = torch.arange(3)[None] < valid
    close(ppo.masked_whiten(torch.tensor([[-10.0, NAN, 3.0]]), mask), [[0.0, 0.0, 0.0]])


def test_whitening_equal_values_gives_zero_not_amplified_rounding():
    x = torch.full((7, 13), -9.9)
    assert ppo.masked_whiten(x, torch.ones_like(x).bool()).abs().max() < 1e-4


def test_isolated_whitening_shows_small_differences_and_keeps_the_push():
    x = torch.tensor([[-10.0], [-9.9], [-9.8], [.5], [.6], [.7]])
    mask, failed = torch.ones(6, 1).bool(), x[:, 0] < -1
    together, apart = ppo.masked_whiten(x, mask)[:, 0], ppo.masked_whiten(x, mask, failed)[:, 0]
    assert together[4] - together[3] < .03 < .5 < apart[4] - apart[3]
    assert torch.equal(apart.argsort(), torch.arange(6)) and apart[2] < 0 < apart[3]  # no failed one beats a valid one
    within = .5 * 1.2247449 * np.array([-1, 0, 1])
    close(apart, np.array([*(within - 1), *(within + 1)]) / 1.25 ** .5, atol=1e-3)
    close(torch.stack([apart.mean(), apart.std(unbiased=False)]), [0.0, 1.0])


def test_isolated_whitening_of_one_group_is_plain_whitening():
    x, mask = torch.randn(4, 5), torch.rand(4, 5) < .8
    for failed in (torch.ones(4).bool(), torch.zeros(4).bool()):
        close(ppo.masked_whiten(x, mask, failed), ppo.masked_whiten(x, mask))


# log-probabilities

class TableLogits(nn.Module):
    """A policy whose logits and values are given."""

    def __init__(self, logits, values=None):
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.values = torch.zeros(logits.shape[:2]) if values is None else values

    def forward(self, tokens):
        return self.logits, self.values


@pytest.mark.parametrize(("temperature", "logprobs", "entropy"), [
    (.5, [-.142932, -2.142932, -4.142932], .441057), (.7, [-.260118, -1.688690, -3.117261], .650573)])
def test_temperature_enters_logprobs_and_entropy_not_values(temperature, logprobs, entropy):  # case 7
    policy = TableLogits(torch.tensor([2.0, 1.0, 0.0]).expand(1, 4, 3).clone(), torch.tensor([[.1, .2, .3, .4]]))
    mask = torch.tensor([[0, 1, 1, 1]]).bool()
    actual = ppo.evaluate(policy, torch.tensor([[0, 0, 1, 2]]), mask, temperature)
    close(actual[0], [[0, *logprobs]])
    close(actual[1], [[0, entropy, entropy, entropy]])
    close(actual[2], [[0, .1, .2, .3]])


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN])
def test_training_at_temperature_zero_is_refused(temperature):  # case 7
    with pytest.raises(ValueError, match="temperature"):
        ppo.evaluate(ToyPolicy(), torch.zeros(1, 2, dtype=torch.long), torch.tensor([[False, True]]), temperature)


def test_an_action_in_column_zero_is_refused():
    with pytest.raises(ValueError, match="column 0"):
        ppo.evaluate(ToyPolicy(), torch.zeros(1, 2, dtype=torch.long), torch.tensor([[True, True]]), 1.0)


def test_bfloat16_logits_are_normalised_in_fp32():
    policy, mask = TableLogits(torch.randn(1, 4, 50).bfloat16()), torch.tensor([[0, 1, 1, 1]]).bool()
    actual = ppo.evaluate(policy, torch.tensor([[0, 3, 4, 5]]), mask, 1.0)
    assert {x.dtype for x in actual} == {torch.float32}
    expected = policy.logits.detach().double().log_softmax(-1)[0, [0, 1, 2], [3, 4, 5]]
    close(actual[0][mask], expected.float())


def test_gradient_reaches_the_stop_token_and_nothing_else():  # case 5
    policy = TableLogits(torch.randn(2, 6, 4))
    tokens, mask = torch.randint(4, (2, 6)), torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0]]).bool()
    logprobs, _, _ = ppo.evaluate(policy, tokens, mask, 1.0)
    ppo.policy_loss(logprobs, logprobs.detach(), torch.ones(2, 6), torch.ones(2), mask, 0.2)[0].backward()
    reached = policy.logits.grad.abs().sum(-1) > 0
    assert torch.equal(reached[:, :-1], mask[:, 1:])  # position t - 1 predicts token t; the last True is the stop token
    assert not reached[:, -1].any()


def test_ratio_is_one_before_the_first_step_whatever_the_padding():  # case 8
    policy = ToyPolicy().float()
    one_by_one = []
    experience = sample_experience(policy)
    for tokens, mask in zip(experience.tokens, experience.action_mask, strict=True):
        end = int(mask.nonzero()[-1]) + 1
        one_by_one.append(ppo.evaluate(policy, tokens[None, :end], mask[None, :end], .7)[0][mask[None, :end]])
    together = ppo.evaluate(policy, experience.tokens, experience.action_mask, .7)[0][experience.action_mask]
    assert ((together - torch.cat(one_by_one)).exp() - 1).abs().max() < 1e-5


def test_behaviour_logprobs_are_not_recomputed():  # cases 10, 8
    experience = sample_experience(ToyPolicy())
    stored = experience.behaviour_logprobs.clone()
    first, later = updated(experience)[1], updated(experience, epochs=3)[1]
    assert abs(first["policy/ratio_max"] - 1) < 1e-5 and first["policy/clip_frac"] == 0
    assert later["policy/ratio_max"] > 1.01 and later["policy/approx_kl"] > 1e-6
    assert torch.equal(experience.behaviour_logprobs, stored)


# losses

def one_token(*numbers):
    return [torch.tensor([[float(x)]], requires_grad=True) for x in numbers]


ON = torch.tensor([[True]])


def test_log_ratio_of_100_without_advantage_gives_zero_and_finite_gradients():  # case 9
    logprobs, old, advantage = one_token(100, 0, 0)
    loss, metrics = ppo.policy_loss(logprobs, old, advantage, torch.ones(1), ON, 0.2)
    loss.backward()
    assert loss == 0 and logprobs.grad.isfinite().all() and all(x.isfinite() for x in metrics.values())


def test_kl_k3_by_hand():  # case 12
    p, q = torch.tensor([.7, .2, .1]), torch.tensor([.5, .3, .2])
    estimates = ppo.kl_k3(p.log(), q.log())
    close(estimates, [.050758, .094535, .306853])
    close((p * estimates).sum(), .085123)


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [
    (1.5, 1, -1.2), (.5, 1, -.5), (1.5, -1, 1.5), (.5, -1, .8)])
def test_policy_clip_by_hand(ratio, advantage, expected):  # case 13
    loss, metrics = ppo.policy_loss(*one_token(math.log(ratio), 0, advantage), torch.ones(1), ON, 0.2)
    close(loss, expected)
    close(metrics["clip_frac"], 1.0)
    close(metrics["ratio_max"], ratio)


@pytest.mark.parametrize(("ratio", "advantage", "expected"), [(9, -1, 3), (2, -1, 2), (9, 1, -1.2)])
def test_dual_clip_bounds_the_loss_of_negative_advantages(ratio, advantage, expected):
    loss, _ = ppo.policy_loss(*one_token(math.log(ratio), 0, advantage), torch.ones(1), ON, 0.2, dual_clip=3.0)
    close(loss, float(expected))


@pytest.mark.parametrize(("value", "old", "target", "expected"), [(1, 0, 2, 1.62), (1, 0, 0, .5), (.1, 0, 1, .405)])
def test_value_clip_by_hand(value, old, target, expected):  # case 14
    close(ppo.value_loss(*one_token(value, old, target), ON, 0.2)[0], expected)


def test_infinite_value_clip_is_no_clip():
    close(ppo.value_loss(*one_token(1, 0, 2), ON, math.inf)[0], .5)


def test_token_mean_over_micro_batches():  # case 15
    a, b = torch.full((1, 8), 1.0), torch.full((1, 2), 9.0)
    parts = [ppo.token_mean(x, torch.ones_like(x).bool(), normaliser=10) for x in (a, b)]
    close(sum(parts), 2.6)
    zero = [torch.zeros_like(x) for x in (a, b)]
    parts = [ppo.policy_loss(z, z, -x, torch.ones(1), z == 0, 0.2, normaliser=10)[0]
             for x, z in zip((a, b), zero, strict=True)]
    close(sum(parts), 2.6)
    parts = [ppo.value_loss((2 * x).sqrt(), z, z, z == 0, 9.0, normaliser=10)[0]
             for x, z in zip((a, b), zero, strict=True)]
    close(sum(parts), 2.6, atol=1e-5)


# duration weights

def test_duration_weights_by_hand():  # case 16
    durations = torch.tensor([10.0, 30.0, 60.0])
    close(ppo.duration_weights(durations, "mean"), [.3, .9, 1.8])
    close(ppo.duration_weights(durations, "none"), [1.0, 1.0, 1.0])
    log = np.log1p([10, 30, 60])
    close(ppo.duration_weights(durations, "log"), torch.tensor(log / log.mean()))
    close(ppo.duration_weights(1000 * durations, "mean"), [.3, .9, 1.8])
    close(ppo.duration_weights(durations, "mean", cap=1.0), np.array([.3, .9, 1]) / (2.2 / 3))


@pytest.mark.parametrize("mode", ["mean", "log"])
@pytest.mark.parametrize("seconds", [.1, 1 / 3, 7.77, 1e4])
def test_equal_durations_give_exactly_one(mode, seconds):  # case 16
    assert torch.equal(ppo.duration_weights(torch.full((129,), seconds), mode, cap=2.0), torch.ones(129))


def test_each_task_has_its_own_mean_duration():
    weights = ppo.duration_weights(torch.tensor([1.0, 100, 3, 300]), "mean", task_index=torch.tensor([5, 2, 5, 2]))
    close(weights, [.5, .5, 1.5, 1.5])


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, math.inf])
@pytest.mark.parametrize("mode", ["none", "mean", "log"])
def test_impossible_durations_are_refused(bad, mode):  # case 16
    with pytest.raises(ValueError, match="positive and finite"):
        ppo.duration_weights(torch.tensor([1.0, bad]), mode)


@pytest.mark.parametrize(("mode", "cap", "match"), [
    ("ipw", None, "inverse"), ("mode", None, "mode"), ("mean", 0, "cap")])
def test_unknown_duration_options_are_refused(mode, cap, match):
    with pytest.raises(ValueError, match=match):
        ppo.duration_weights(torch.ones(2), mode, cap=cap)


def loss_gradients(weights):
    """Loss metrics and gradients of one micro-batch, off the behaviour policy, under these duration weights."""
    experience, policy = sample_experience(ToyPolicy()), ToyPolicy(seed=3)
    advantages, returns = ppo.compute_gae(experience.rewards, experience.values, experience.action_mask, 1.0, 0.95)
    batch = ppo.build_batch(policy, experience, experience.values, advantages, returns, weights)
    keys = ("temperature", "clip_eps", "value_clip_eps", "value_coef", "entropy_coef", "kl_coef")
    loss, metrics = ppo.compute_loss(
        policy, batch, 26, **{key: SETTINGS[key] for key in keys}, dual_clip=None, detach_value=False)
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return metrics, torch.cat([g.flatten() for g in gradients])


def test_duration_weight_changes_only_the_policy_term():
    ones, double, zero = (loss_gradients(w * torch.ones(6)) for w in (1.0, 2.0, 0.0))
    assert {name for name in ones[0] if ones[0][name] != double[0][name]} == {"update/loss", "policy/loss"}
    close(double[0]["policy/loss"], 2 * ones[0]["policy/loss"], atol=1e-9)
    close(double[1] - ones[1], ones[1] - zero[1], atol=1e-9)
    assert (ones[1] - zero[1]).abs().max() > 1e-3


def test_equal_durations_give_the_unweighted_update_exactly():  # case 16
    experience = sample_experience(ToyPolicy())
    equal = ppo.Experience(**{**vars(experience), "durations": torch.full((6,), 3.3)})
    assert torch.equal(updated(equal, duration_weight="mean")[0], updated(equal)[0])
    assert not torch.equal(updated(experience, duration_weight="mean")[0], updated(experience)[0])


# an independent implementation, token by token in float64, from the papers

def numpy_gae(rewards, values, mask, gamma, lam):
    advantages, returns = np.zeros(mask.shape), np.zeros(mask.shape)
    for b in range(len(mask)):
        index = np.flatnonzero(mask[b])
        r, v = rewards[b, index], np.append(values[b, index], 0.0)
        delta = r + gamma * v[1:] - v[:-1]
        for k, t in enumerate(index):
            advantages[b, t] = sum((gamma * lam) ** n * d for n, d in enumerate(delta[k:]))
            returns[b, t] = advantages[b, t] + values[b, t]
    return advantages, returns


def numpy_losses(new, old, advantages, weights, values, old_values, returns, mask, eps):
    policy = value = 0.0
    for b, t in zip(*np.nonzero(mask), strict=True):
        ratio, a = math.exp(new[b, t] - old[b, t]), advantages[b, t]
        bound = (1 + eps) * a if a >= 0 else (1 - eps) * a
        policy -= weights[b] * min(ratio * a, bound)
        near = min(max(values[b, t], old_values[b, t] - eps), old_values[b, t] + eps)
        value += 0.5 * max((values[b, t] - returns[b, t]) ** 2, (near - returns[b, t]) ** 2)
    return policy / mask.sum(), value / mask.sum()


def test_gae_and_losses_agree_with_numpy_on_100_ragged_batches():
    rng = np.random.default_rng(0)
    for _ in range(100):
        B, T = rng.integers(1, 6), rng.integers(2, 15)
        mask = rng.random((B, T)) < rng.uniform(.3, 1)
        mask[0, -1] = True
        rewards, values, new, old_values = rng.normal(size=(4, B, T))
        old, weights = new + .4 * rng.normal(size=(B, T)), rng.uniform(.1, 3, B)
        gamma, lam, eps = rng.uniform(.8, 1), rng.uniform(0, 1), rng.uniform(.05, .5)
        advantages, returns = numpy_gae(rewards, values, mask, gamma, lam)
        expected = numpy_losses(new, old, advantages, weights, values, old_values, returns, mask, eps)
        cells = [torch.where(torch.tensor(mask), torch.tensor(x), NAN) for x in (new, old, values, old_values, rewards)]
        new, old, values, old_values, rewards = cells
        mask = torch.tensor(mask)
        actual = ppo.compute_gae(rewards, values, mask, gamma, lam)
        close(actual[0], advantages)
        close(actual[1], returns)
        policy, _ = ppo.policy_loss(new, old, actual[0], torch.tensor(weights), mask, eps)
        value, _ = ppo.value_loss(values, old_values, actual[1], mask, eps)
        close(policy, expected[0])
        close(value, expected[1])


# coefficients and statistics

def test_adaptive_kl():  # case 17
    coefficients = [ppo.update_kl_coefficient(.1, observed, 6.0) for observed in (9.1, 9, 6, 3, 2.9)]
    close(torch.tensor(coefficients), torch.tensor([.12, .1, .1, .1, .08]))
    for target in (0, -1, NAN):
        with pytest.raises(ValueError, match="target"):
            ppo.update_kl_coefficient(.1, 1.0, target)


def test_value_statistics_keep_predictions_and_find_the_moments():
    policy, hidden = ToyPolicy(), torch.randn(9, 8, dtype=torch.float64)
    returns, mask = torch.randn(40, 25) * 3 - 8, torch.rand(40, 25) < .7

    def predictions():
        return policy.value_std * policy.value_head(hidden) + policy.value_mean

    before = predictions()
    for _ in range(200):
        ppo.update_value_statistics(policy, torch.where(mask, returns, NAN), mask, rate=0.1)
    close(predictions(), before, atol=1e-9)
    close(policy.value_mean, returns[mask].mean(), atol=1e-4)
    close(policy.value_std, returns[mask].std(unbiased=False), atol=1e-4)


@pytest.mark.parametrize(("fill", "mask"), [(NAN, True), (-10.0, False)])
def test_value_statistics_ignore_nan_and_nothing(fill, mask):
    policy = ToyPolicy()
    ppo.update_value_statistics(policy, torch.full((2, 2), fill), torch.full((2, 2), mask), rate=1.0)
    assert (policy.value_mean, policy.value_std) == (0, 1) and torch.equal(parameters(policy), parameters(ToyPolicy()))


def test_equal_returns_do_not_divide_by_zero():
    policy = ToyPolicy()
    ppo.update_value_statistics(policy, torch.full((2, 2), -10.0), torch.ones(2, 2).bool(), rate=1.0)
    assert policy.value_mean == -10 and policy.value_std == ppo.MIN_VALUE_STD


def test_value_gradient_stops_at_the_backbone():
    experience = sample_experience(ToyPolicy())
    assert updated(experience)[1]["value/grad_norm"] > 1e-3
    detached = updated(experience, detach_value=True)[1]
    assert detached["value/grad_norm"] == 0 and detached["policy/backbone_grad_norm"] > 1e-3
