"""ppo.update: micro-batches, minibatches, ranks and NaNs change nothing that they should not."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from toy import NAN, SETTINGS, ToyPolicy, close, parameters, rows_of, sample_experience, spawn_two_ranks, updated

import ppo
from ranks import finish_processes

# update

def test_micro_batches_cover_each_row_once_within_the_budget():
    lengths = torch.randint(1, 60, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    for budget in (1, 64, 200, 10_000):
        groups = ppo.micro_batches(lengths, budget)
        assert sorted(row for group in groups for row in group) == list(range(50))
        assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= budget for g in groups)
    assert [len(ppo.micro_batches([n] * 5, 100)) for n in (95, 20)] == [5, 1]
    assert ppo.micro_batches([], 100) == []


@pytest.mark.parametrize("budget", [1, 15, 30])
def test_micro_batch_budget_changes_neither_parameters_nor_metrics(budget):  # case 15
    experience = sample_experience(ToyPolicy())
    changes = {"epochs": 2, "duration_weight": "mean", "whitening": "isolate"}
    whole, split = updated(experience, **changes), updated(experience, micro_batch_tok=budget, **changes)
    close(split[0], whole[0], atol=1e-9)
    assert whole[1] == pytest.approx(split[1], abs=1e-6)


@pytest.mark.parametrize("garbage", [1e6, NAN])
def test_garbage_under_the_mask_changes_nothing(garbage):  # case 18
    clean, dirty = (sample_experience(ToyPolicy(), garbage=x) for x in (0.0, garbage))
    changes = {"epochs": 2, "minibatches": 2, "duration_weight": "mean", "whitening": "isolate"}
    a, b = (updated(x, generator=torch.Generator().manual_seed(0), **changes) for x in (clean, dirty))
    assert torch.equal(a[0], b[0]) and a[1] == b[1] and all(map(math.isfinite, b[1].values()))


def test_no_input_is_written_to():  # case 18
    experience = sample_experience(ToyPolicy(), garbage=NAN)
    before = {name: x.clone() for name, x in vars(experience).items() if x is not None}
    updated(experience, epochs=2, minibatches=2, duration_weight="log", duration_cap=1.5, whitening="isolate")
    for name, x in before.items():
        torch.testing.assert_close(getattr(experience, name), x, equal_nan=True, atol=0, rtol=0)


def test_metrics_by_hand():
    experience = sample_experience(ToyPolicy())
    mask, metrics = experience.action_mask, updated(experience, duration_weight="mean")[1]
    kl = ppo.kl_k3(experience.behaviour_logprobs, experience.reference_logprobs)[mask].sum() / 6
    weights = experience.durations / torch.stack([experience.durations[i::2].mean() for i in (0, 1)]).repeat(3)
    with torch.no_grad():
        _, entropy, _ = ppo.evaluate(ToyPolicy(), experience.tokens, mask, .7)
    advantages, returns = ppo.compute_gae(experience.rewards, experience.values, mask, 1.0, 0.95)
    expected = {"policy/kl_ref": kl, "duration/weight_max": weights.max(), "policy/entropy": entropy[mask].mean(),
                "duration/effective_sample_size": weights.sum() ** 2 / weights.square().sum(), "update/skipped": 0,
                "value/explained_variance": 1 - advantages[mask].var() / returns[mask].var()}
    for name, x in expected.items():
        assert metrics[name] == pytest.approx(float(x), abs=1e-6), name


def test_update_learns_the_rewarded_token():
    policy = ToyPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    tokens, mask = torch.randint(11, (64, 5)), torch.tensor([[0, 1, 1, 1, 1]]).bool().expand(64, 5)
    for _ in range(15):
        for t in range(1, 5):
            tokens[:, t] = torch.multinomial((policy(tokens)[0][:, t - 1] / .7).softmax(-1).detach(), 1)[:, 0]
        with torch.no_grad():
            logprobs, _, values = ppo.evaluate(policy, tokens, mask, .7)
            values = policy.value_std * values + policy.value_mean
        rewards = torch.zeros(64, 5)
        rewards[:, -1] = (tokens[:, 1:] == 3).sum(1)
        experience = ppo.Experience(tokens, mask, logprobs, logprobs, values, rewards, torch.ones(64), torch.zeros(64))
        settings = {**SETTINGS, "epochs": 4, "minibatches": 2, "value_clip_eps": math.inf}
        ppo.update(policy, optimizer, experience, **settings)
    assert (tokens[:, 1:] == 3).float().mean() > .5  # chance is 1 / 11


def test_nothing_valid_trains_nothing():
    experience = sample_experience(ToyPolicy())
    empty = ppo.Experience(**{**vars(experience), "action_mask": torch.zeros_like(experience.action_mask)})
    for nothing in (empty, rows_of(experience, slice(0))):
        after, metrics = updated(nothing, epochs=2, minibatches=2)
        assert torch.equal(after, parameters(ToyPolicy()))
        assert all(map(math.isfinite, metrics.values())) and metrics["update/skipped"] == 0


def test_more_minibatches_than_episodes_is_fine():
    after, metrics = updated(sample_experience(ToyPolicy()), minibatches=9)
    assert after.isfinite().all() and all(map(math.isfinite, metrics.values()))


def test_isolate_needs_to_know_who_failed():
    unknown = ppo.Experience(**{**vars(sample_experience(ToyPolicy())), "failed": None})
    for changes in ({"whitening": "isolate"}, {"whitening": "apart"}):
        with pytest.raises(ValueError, match="whitening"):
            updated(unknown, **changes)


def test_nan_steps_are_skipped_counted_and_ten_in_a_row_raise():
    policy, guard = ToyPolicy(), ppo.NonFiniteGuard()
    optimizer = torch.optim.Adam(policy.parameters())
    good = sample_experience(policy)
    rewards = good.rewards.clone()
    rewards[good.action_mask] = NAN
    bad = ppo.Experience(**{**vars(good), "rewards": rewards})
    settings = {**SETTINGS, "epochs": 3, "minibatches": 3, "guard": guard}
    assert ppo.update(policy, optimizer, bad, **settings)["update/skipped"] == 9
    assert torch.equal(parameters(policy), parameters(ToyPolicy())) and not optimizer.state
    assert ppo.update(policy, optimizer, good, **settings)["update/skipped"] == 0 and guard.in_a_row == 0
    assert parameters(policy).isfinite().all()
    ppo.update(policy, optimizer, bad, **settings)
    with pytest.raises(FloatingPointError, match="ten updates in a row"):
        ppo.update(policy, optimizer, bad, **settings)


# two ranks
FEW = (1, 2, 3, 5)  # samples in all
SHARED = {"duration_weight": "mean", "whitening": "isolate", "epochs": 2, "minibatches": 2}


GROUPED = {"duration_weight": "mean", "advantage": "group", "epochs": 2, "minibatches": 2}


def with_groups(experience):
    """Three groups whose rows lie on both ranks, one of them a lone row."""
    return replace(experience, group_index=torch.tensor([0, 2, 0, 2, 5, 0]))


def in_order(**changes):
    """Return changes with a generator that is in the same state on every rank."""
    return {**changes, "generator": torch.Generator().manual_seed(0)}


def run_rank(rank, directory):
    """Everything that two ranks must do together; results go to rank{rank}.pt."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    x, mask = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[1, 1, 1, 0], [0, 0, 0, 1]]).bool()[rank, None]
    lone, nobody = torch.tensor([[rank == 0, False]]), torch.zeros(1, 2).bool()
    result = {"whiten": ppo.masked_whiten(x, mask), "lone": ppo.masked_whiten(torch.tensor([[-10.0, NAN]]), lone),
              "nobody": ppo.masked_whiten(torch.tensor([[-10.0, NAN]]), nobody),
              "weights": ppo.duration_weights(torch.tensor([10.0, 30, 60])[rank * 2: rank * 2 + 2], "mean")}
    with pytest.raises(ValueError, match="positive"):
        ppo.duration_weights(torch.tensor([1.0, float(rank)]), "mean")  # bad on rank 0 only, refused on both
    experience = sample_experience(ToyPolicy())
    result["split"] = updated(rows_of(experience, slice(0, 4) if rank == 0 else slice(4, 6)), **in_order(**SHARED))
    result["idle"] = updated(rows_of(experience, slice(0, 6) if rank == 0 else slice(0)), **in_order(**SHARED))
    lengths = (95,) * 5 if rank == 0 else (20,) * 5  # five micro-batches against one
    uneven = sample_experience(ToyPolicy(), (1,) * 5, lengths, seed=rank)
    result["uneven"] = updated(uneven, **in_order(micro_batch_tok=100, epochs=2, minibatches=2))
    for n in FEW:  # rank 0 has one more where n is odd, rank 1 none of one; two minibatches, some without a sample
        few = sample_experience(ToyPolicy(), (2,) * n, (4,) * n)
        own = slice(0, (n + 1) // 2) if rank == 0 else slice((n + 1) // 2, n)
        result[n] = updated(rows_of(few, own), **in_order(**SHARED))
    groups = with_groups(experience)
    result["group"] = updated(rows_of(groups, slice(0, 4) if rank == 0 else slice(4, 6)), **in_order(**GROUPED))
    result["group idle"] = updated(rows_of(groups, slice(0, 6) if rank == 0 else slice(0)), **in_order(**GROUPED))
    torch.save(result, f"{directory}/rank{rank}.pt")
    finish_processes()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    return spawn_two_ranks(run_rank, directory)


def test_two_ranks_whiten_together(two_ranks):  # case 6
    close(two_ranks[0]["whiten"], [[-1.34164, -.44721, .44721, 0]], atol=1e-5)
    close(two_ranks[1]["whiten"], [[0, 0, 0, 1.34164]], atol=1e-5)
    for rank in two_ranks:
        close(rank["lone"], [[0.0, 0.0]])
        close(rank["nobody"], [[0.0, 0.0]])


def test_two_ranks_share_the_mean_duration(two_ranks):  # case 16
    close(torch.cat([rank["weights"] for rank in two_ranks]), [.3, .9, 1.8])


@pytest.mark.parametrize("share", ["split", "idle"])
def test_two_ranks_take_the_step_of_one(two_ranks, share):  # cases 15, 19
    after, metrics = updated(sample_experience(ToyPolicy()), **in_order(**SHARED))
    probes = {"policy/backbone_grad_norm", "value/grad_norm"}  # each rank looks at its own longest episode
    for rank in two_ranks:
        close(rank[share][0], after, atol=1e-9)
        for name in metrics.keys() - (probes if share == "split" else set()):
            assert rank[share][1][name] == pytest.approx(metrics[name], abs=1e-6), name


@pytest.mark.parametrize("share", ["group", "group idle"])
def test_two_ranks_take_the_group_step_of_one(two_ranks, share):
    after, metrics = updated(with_groups(sample_experience(ToyPolicy())), **in_order(**GROUPED))
    for rank in two_ranks:
        close(rank[share][0], after, atol=1e-9)
        for name in metrics.keys() - {"policy/backbone_grad_norm", "value/grad_norm"}:
            assert rank[share][1][name] == pytest.approx(metrics[name], abs=1e-6), name


@pytest.mark.parametrize("n", FEW)
def test_two_ranks_share_few_samples(two_ranks, n):
    few = sample_experience(ToyPolicy(), (2,) * n, (4,) * n)
    after, metrics = updated(few, **in_order(**SHARED))
    for rank in two_ranks:
        close(rank[n][0], after, atol=1e-9)
        assert rank[n][1]["update/loss"] == pytest.approx(metrics["update/loss"], abs=1e-6)


def test_ranks_with_different_numbers_of_micro_batches_do_not_deadlock(two_ranks):  # case 19
    a, b = (rank["uneven"] for rank in two_ranks)
    assert torch.equal(a[0], b[0]) and a[1] == b[1]


def test_a_new_value_head_starts_at_the_mean_of_the_first_returns():
    policy = ToyPolicy()
    torch.nn.init.zeros_(policy.value_head.weight)
    torch.nn.init.zeros_(policy.value_head.bias)
    experience = sample_experience(policy)
    mask, returns = experience.action_mask, torch.where(experience.action_mask, -8.0 + experience.rewards, 0.0)
    assert ppo.update_value_statistics(policy, returns, mask, 0.1)
    close(policy.value_mean, returns[mask].mean())
    batch = ppo.build_batch(policy, experience, policy.value_mean.expand(mask.shape), returns, returns, experience.durations)
    close(batch["old_values"], torch.zeros_like(batch["old_values"]))  # what the head outputs: nothing is clipped
    assert not ppo.update_value_statistics(ToyPolicy(), returns, mask, 0.1)


def test_stale_samples_weigh_by_the_ratio_to_the_policy_that_sampled_them():
    torch.manual_seed(0)
    logprobs, proximal, behaviour = (torch.randn(2, 5) for _ in range(3))
    advantages, mask, weights = torch.randn(2, 5), torch.rand(2, 5) < 0.8, torch.tensor([0.5, 1.5])
    loss, _ = ppo.policy_loss(logprobs, proximal, advantages, weights, mask, 0.2, behaviour_logprobs=behaviour)
    ratio, stale = (logprobs - proximal).exp(), (proximal - behaviour).exp().clamp(max=5)
    terms = stale * torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * weights[:, None]
    torch.testing.assert_close(loss, -terms[mask].mean())


def test_an_update_on_fresh_samples_is_the_same_with_their_own_logprobs_as_proximal():
    experience = sample_experience(ToyPolicy())
    plain, metrics = updated(experience)
    assert metrics["policy/mismatch_kl"] == 0
    again, _ = updated(replace(experience, proximal_logprobs=experience.behaviour_logprobs))
    assert torch.equal(plain, again)
    stale, metrics = updated(replace(experience, proximal_logprobs=experience.behaviour_logprobs + 0.5))
    assert not torch.equal(plain, stale) and metrics["policy/mismatch_kl"] > 0


# group-relative advantages


def one_reward_a_row(rewards):
    """Rewards (B, 4) on the last of one to three actions, and the mask."""
    mask = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 0], [0, 1, 1, 0]]).bool().repeat(2, 1)[: len(rewards)]
    last = 3 - mask.flip(1).int().argmax(1)
    return torch.zeros(len(rewards), 4).scatter(1, last[:, None], torch.tensor(rewards)[:, None]), mask


def test_group_advantages_by_hand():
    rewards, mask = one_reward_a_row([1.0, 2.0, 3.0, -10.0, -10.0, 5.0])
    advantages = ppo.group_advantages(rewards, mask, torch.tensor([0, 0, 0, 3, 3, 1]))
    close(advantages[:3], [[0, -1.224745, -1.224745, -1.224745], [0] * 4, [0, 1.224745, 1.224745, 0]], atol=1e-5)
    assert not advantages[3:].any()  # exactly 0 without spread, and alone: an optimizer would scale rounding up


def test_a_nan_is_seen_in_its_group_and_a_row_without_action_in_none():
    rewards, mask = one_reward_a_row([1.0, NAN, 3.0, 1.0, 2.0, 3.0])
    mask[3] = False
    advantages = ppo.group_advantages(rewards, mask, torch.tensor([0, 1, 0, 0, 2, 2]))
    assert advantages[1, 2].isnan() and advantages[[0, 2, 3, 4, 5]].isfinite().all()
    close(advantages[0, 1:], [-1.0, -1.0, -1.0], atol=1e-5)
    assert not advantages[3].any()


def test_group_mode_has_no_value_loss_and_leaves_the_value_head_alone():
    policy, before = ToyPolicy(), ToyPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, weight_decay=0.0)
    metrics = ppo.update(policy, optimizer, with_groups(sample_experience(policy)), **SETTINGS, advantage="group")
    value = {name for name in policy.state_dict() if name.startswith("value")}
    assert value == {"value_head.weight", "value_head.bias", "value_mean", "value_std"}
    for name, x in policy.state_dict().items():
        assert torch.equal(x, before.state_dict()[name]) == (name in value), name
    names = ("value/loss", "value/clip_frac", "value/explained_variance", "value/grad_norm")
    assert [metrics[name] for name in names] == [0.0] * 4 and metrics["policy/backbone_grad_norm"] > 0


@pytest.mark.parametrize("changes", [{"gamma": 0.5}, {"gae_lambda": 0.5}, {"value_coef": 9.0}, {"whitening": "isolate"}])
def test_group_mode_reads_no_setting_of_the_value_head(changes):
    experience = with_groups(sample_experience(ToyPolicy()))
    assert torch.equal(updated(experience, advantage="group")[0], updated(experience, advantage="group", **changes)[0])
    assert not torch.equal(updated(experience)[0], updated(experience, **changes)[0])


def test_the_group_loss_by_hand():
    """One group, ratio 1: the policy loss is -Σ w A over the tokens; KL and entropy are those of gae."""
    experience = replace(sample_experience(ToyPolicy()), group_index=torch.zeros(6).long())
    mask, total = experience.action_mask, experience.rewards.sum(1)
    relative = (total - total.mean()) / (total.std(correction=0) + 1e-6)
    weights = experience.durations / torch.stack([experience.durations[i::2].mean() for i in (0, 1)]).repeat(3)
    _, metrics = updated(experience, advantage="group", duration_weight="mean")
    assert metrics["policy/loss"] == pytest.approx(float(-(weights * relative * mask.sum(1)).sum() / mask.sum()), abs=1e-6)
    _, gae = updated(experience, duration_weight="mean")
    for name in ("policy/kl_k3", "policy/entropy", "policy/kl_ref"):
        assert metrics[name] == pytest.approx(gae[name], abs=1e-9) and metrics[name] > 0


@pytest.mark.parametrize("budget", [1, 15])
def test_micro_batches_do_not_change_a_group_update(budget):
    experience = with_groups(sample_experience(ToyPolicy()))
    whole, split = (updated(experience, **in_order(**GROUPED, micro_batch_tok=b)) for b in (10_000, budget))
    close(split[0], whole[0], atol=1e-9)
    assert whole[1] == pytest.approx(split[1], abs=1e-6)


def test_group_needs_to_know_the_groups():
    for changes in ({"advantage": "group"}, {"advantage": "grpo"}):
        with pytest.raises(ValueError, match="advantage"):
            updated(sample_experience(ToyPolicy()), **changes)
