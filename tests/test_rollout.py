"""rollout.py: exact sampling, collection that depends on nothing but the index, tensors for the learner."""

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

import ppo
from checkpoint import UsageError
from instrument import marker
from prompts import Attempt
from reward import Reward
from rollout import Collector, Episode, ImprovementPool, as_logged, tail_of_output, to_experience
from sampler import generate
from sandbox import Execution

PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [40, 41, 42]]


def sample(policy, prompt_of, seeds, prompts=PROMPTS, **options):
    return generate(policy, prompts, prompt_of, seeds, **{"max_new_tok": 12, "temperature": 0.7, **options})


def episode(prompt, response, logprobs=None, total=-9.0, finish="stop", index=0, **more):
    reward = Reward(total=total, score=more.pop("score", None))
    execution = more.pop("execution", Execution("ok", duration_s=1.0))
    return Episode(
        index, "t", "scratch", prompt, response, logprobs or [-0.5] * len(response), finish, 0, "", "x = 1", execution, reward
    )


def test_sampled_logprobs_equal_those_of_a_plain_forward(policy):
    """Case 8: the ratio before the first optimizer step is 1, for ragged prompts, sampled left-padded, trained right-padded."""
    rows = [0, 1, 2, 0, 1, 2, 1]
    generations = sample(policy, rows, list(range(7)))
    episodes = [episode(PROMPTS[p], g.ids, g.logprobs) for p, g in zip(rows, generations, strict=True)]
    experience = to_experience(episodes, policy, policy, temperature=0.7, micro_batch_tok=30)
    logprobs, _, _ = ppo.evaluate(policy, experience.tokens, experience.action_mask, 0.7)
    ratio = (logprobs - experience.behaviour_logprobs).exp()[experience.action_mask]
    assert (ratio - 1).abs().max() < 1e-5
    assert (experience.reference_logprobs - logprobs).abs().max() < 1e-5


def test_the_stop_token_is_kept_and_ends_the_response(policy):
    """Case 5: the sampled stop token is trained on; a prompt may hold it without ending anything."""
    stop = policy.tokenizer.eos_token_id
    with torch.no_grad():
        policy.lm.get_input_embeddings().weight[stop] *= 3  # tied: makes the stop token likely enough to be sampled
    generations = sample(policy, [0] * 64, list(range(64)), [[5, stop, 6]], max_new_tok=30)
    assert {g.finish_reason for g in generations} == {"stop", "length"}
    for g in generations:
        assert (g.ids[-1] == stop) == (g.finish_reason == "stop") and stop not in g.ids[:-1]
        assert len(g.ids) == len(g.logprobs) and (g.finish_reason == "stop" or len(g.ids) == 30)
    stopped = next(g for g in generations if g.finish_reason == "stop")
    experience = to_experience(
        [episode([5, stop, 6], stopped.ids, stopped.logprobs)], policy, policy, temperature=0.7, micro_batch_tok=99
    )
    assert experience.action_mask[0].sum() == len(stopped.ids) and experience.action_mask[0, 2 + len(stopped.ids)]


def test_masks_come_from_lengths_and_rewards_land_on_the_last_token(policy):
    """Cases 3 and 4: pad, end of sequence and prompt may share an id."""
    episodes = [episode([2, 5], [6, 2], total=3.0), episode([1], [5, 6, 2, 2], total=-4.0, finish="length")]
    x = to_experience(episodes, policy, policy, temperature=1.0, micro_batch_tok=100)
    assert x.action_mask.int().tolist() == [[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]]
    assert x.rewards.tolist() == [[0, 0, 0, 3, 0], [0, 0, 0, 0, -4]]
    assert x.tokens.tolist() == [[2, 5, 6, 2, 0], [1, 5, 6, 2, 2]]


def test_a_rank_without_episodes_still_has_an_experience(policy):
    x = to_experience([], policy, policy, temperature=1.0, micro_batch_tok=100)
    assert x.tokens.shape == x.values.shape == (0, 1) and x.failed.dtype == torch.bool


def test_values_are_in_reward_units(policy):
    policy.value_mean.fill_(-8.0)
    policy.value_std.fill_(2.0)
    x = to_experience([episode([5, 6], [7, 8])], policy, policy, temperature=1.0, micro_batch_tok=100)
    with torch.no_grad():
        _, raw = policy(torch.tensor([[5, 6, 7, 8]]))
    assert torch.allclose(x.values[0, 2:], -8 + 2 * raw[0, 1:3]) and not x.values[0, :2].any()


def test_micro_batches_change_nothing(policy):
    episodes = [episode(list(range(5, 5 + n)), [7] * m) for n, m in ((3, 2), (1, 5), (6, 1))]
    a, b = (to_experience(episodes, policy, policy, temperature=1.0, micro_batch_tok=n) for n in (7, 1000))
    assert torch.allclose(a.values, b.values, atol=1e-6) and torch.allclose(
        a.reference_logprobs, b.reference_logprobs, atol=1e-6
    )


def test_the_pool_keeps_the_best_and_the_latest_and_survives_json():
    pool = ImprovementPool(best_size=2, recent_size=2)
    rewards = [(0.1, 0.1), (-9.7, None), (0.9, 0.9), (0.5, 0.5)]
    episodes = [episode([1], [2], total=t, score=s, index=i) for i, (t, s) in enumerate(rewards)]
    episodes = [Episode(**{**e.__dict__, "program": f"p{e.index}"}) for e in episodes]
    pool.add(list(reversed(episodes)))  # the order of arrival does not matter
    assert [r for r, _ in pool.best] == [0.9, 0.5]
    assert [a.program for a in pool.recent] == ["p2", "p3"]
    other = ImprovementPool(2, 2)
    other.load_state(json.loads(json.dumps(pool.state())))
    assert other == pool and other.best[0][1] == Attempt("p2", "", 0.9)


def test_the_tail_of_output_is_the_reason_or_the_last_lines_without_what_differs_from_run_to_run():
    valid, failed = (
        Reward(0.5, score=0.7),
        Reward(-9.9, reason="error: KeyError: <x at 0x7f12ab34cd> in /tmp/nanomle-ab/run-12/a.csv"),
    )
    assert tail_of_output(Execution("ok", 0, "1\n2\n3\n4\n", "warning"), valid) == "2\n3\n4"
    assert tail_of_output(Execution("error", 1, "1\n"), failed) == "error: KeyError: <x at 0x> in ./a.csv"


def test_logged_output_holds_no_marker_no_submission_and_no_megabytes():
    token = "0123456789abcdef"
    stderr = f"    x = 1; {marker('DATA_LOADED', token)}\nValueError: no\n"
    execution = as_logged(Execution("error", 1, "a" * 10_000 + f"\n{token} DATA_LOADED\n", stderr, submission=b"x"), token)
    assert token not in execution.stdout + execution.stderr and execution.stderr == "    x = 1\nValueError: no\n"
    assert len(execution.stdout) < 9000 and execution.submission is None


class FakeSandbox:
    """Answers at once; `infra` counts the programs whose sandbox fails."""

    def __init__(self, infra=0):
        self.infra, self.programs = infra, []

    def why_closed(self, public_dir):
        return ""

    def submit(self, program, public_dir, *, time_limit_s, seed):
        self.programs.append((program, seed))
        status = "infra_error" if len(self.programs) <= self.infra else "error"
        future = Future()
        future.set_result(Execution(status, 1, "", "NameError: x", duration_s=0.1))
        return future


def collector(pizza, sandbox, pool=None, **changes):
    options = {"seed": 0, "secret": b"s", "pools": {pizza.name: pool or ImprovementPool()}, "temperature": 0.7,
               "max_prompt_tok": 4000, "max_new_tok": 6, "brief": True, "improve_frac": 0.5}  # fmt: skip
    return Collector([pizza], sandbox, **{**options, **changes})


def test_data_that_programs_cannot_reach_are_a_usage_error(pizza, monkeypatch):
    monkeypatch.setattr(FakeSandbox, "why_closed", lambda self, public_dir: f"no way to {public_dir}")
    with pytest.raises(UsageError, match=f"the data of random-pizza: no way to {pizza.public_dir}"):
        collector(pizza, FakeSandbox())


def test_the_trained_ids_are_the_sampled_ones(policy, pizza):
    """Case 11: a response is never encoded again from its text; random ids seldom survive that."""
    made = collector(pizza, FakeSandbox())
    episodes = made.collect(policy, range(8))
    sampled = generate(
        policy, [e.prompt_ids for e in episodes], list(range(8)), [made.sample_seed(i) for i in range(8)],
        max_new_tok=6, temperature=0.7,
    )  # fmt: skip
    assert [e.response_ids for e in episodes] == [g.ids for g in sampled]
    assert any(policy.tokenizer.encode(e.response) != e.response_ids for e in episodes)


def test_an_episode_depends_on_its_index_alone(policy, pizza):
    """Case 20: two halves collected apart, as two ranks would, are the whole; chunks of sampling do not matter."""
    whole = collector(pizza, FakeSandbox()).collect(policy, range(8, 16))
    halves = [
        e
        for part in (range(8, 12), range(12, 16))
        for e in collector(pizza, FakeSandbox(), sample_batch=3).collect(policy, part)
    ]
    assert [e.response_ids for e in whole] == [e.response_ids for e in halves]
    assert len({tuple(e.response_ids) for e in whole}) > 4
    assert [e.response_ids for e in whole] != [
        e.response_ids for e in collector(pizza, FakeSandbox(), seed=1).collect(policy, range(8, 16))
    ]


def test_half_of_the_prompts_ask_to_improve_once_there_is_a_program(policy, pizza):
    pool = ImprovementPool(recent=[Attempt("print('earlier')", "earlier", None)])
    episodes = collector(pizza, FakeSandbox(), pool=pool, max_new_tok=1).collect(policy, range(200))
    improve = [e for e in episodes if e.kind == "improve"]
    assert 70 < len(improve) < 130
    assert "print('earlier')" in policy.tokenizer.decode(improve[0].prompt_ids)
    assert all(e.kind == "scratch" for e in collector(pizza, FakeSandbox(), max_new_tok=1).collect(policy, range(20)))


def test_an_improvement_prompt_that_is_too_long_gives_way(policy, pizza):
    pool = ImprovementPool(recent=[Attempt("x = 1\n" * 3000, "", None)])
    episodes = collector(pizza, FakeSandbox(), pool=pool, improve_frac=1.0, max_new_tok=1).collect(policy, range(4))
    assert [e.kind for e in episodes] == ["scratch"] * 4
    with pytest.raises(ValueError, match="max-prompt-tok"):
        collector(pizza, FakeSandbox(), max_prompt_tok=10).collect(policy, range(1))


def test_infra_errors_leave_the_batch_and_records_are_json(policy, pizza, monkeypatch):
    """Case 30."""
    monkeypatch.setattr("rollout.extract_program", lambda text: "x = 1\n")
    episodes = collector(pizza, FakeSandbox(infra=2)).collect(policy, range(6))
    assert [e.index for e in episodes] == [2, 3, 4, 5]
    assert json.loads(json.dumps(episodes[0].record()))["execution"]["stderr"] == "NameError: x"


def test_a_group_is_a_task_and_a_kind_of_prompt(policy):
    episodes = [episode([1], [2], index=i) for i in range(4)]
    episodes = [replace(e, task=t, kind=k) for e, (t, k) in zip(
        episodes, [("a", "scratch"), ("b", "improve"), ("a", "improve"), ("a", "scratch")], strict=True)]  # fmt: skip
    x = to_experience(episodes, policy, policy, temperature=1.0, micro_batch_tok=99, task_names=["a", "b"])
    assert x.task_index.tolist() == [0, 1, 0, 0] and x.group_index.tolist() == [0, 3, 1, 0]


def test_without_milestone_prints_a_program_runs_as_written_and_a_failure_earns_nothing(policy, pizza, monkeypatch):
    monkeypatch.setattr("rollout.extract_program", lambda text: "import os\n")
    printing, silent = FakeSandbox(), FakeSandbox()
    collector(pizza, printing).collect(policy, range(1))
    [made] = collector(pizza, silent, milestone_prints=False).collect(policy, range(1))
    assert [program for program, _ in silent.programs] == ["import os\n"] != [program for program, _ in printing.programs]
    assert (made.instrumented_by, made.reward.total, made.reward.milestones) == ("none", -10.0, ())


def test_a_response_without_program_fails_without_running(policy, pizza, monkeypatch):
    monkeypatch.setattr("rollout.extract_program", lambda text: None)
    sandbox = FakeSandbox()
    episodes = collector(pizza, sandbox).collect(policy, range(3))
    assert not sandbox.programs and [e.reward.total for e in episodes] == [-10.0] * 3
    assert all(e.execution.duration_s > 0 for e in episodes)
