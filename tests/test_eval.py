"""eval.py: unbiased statistics, chosen on one split and reported on the other."""

import contextlib
import csv
import dataclasses
import itertools
import json
import random
import re
import statistics
from concurrent.futures import Future
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from conftest import run_script
from test_own_task import own_wine
from test_rollout import FakeSandbox

import eval
import evaluation
import rollout
from bestofk import best_index, expected_best_of_k, order_of, pass_at_k, summarise
from checkpoint import UsageError
from config import Config, resolve
from model import save_policy
from results import table
from reward import Reward
from sandbox import Execution
from tasks import load_task

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


# whole evaluations, with a toy policy and a sandbox that answers at once


class Answering(FakeSandbox):
    """Programs predict random numbers, drawn from the seed and the response; number `breaks_at` finds the disk full."""

    breaks_at = None

    def submit(self, program, public_dir, *, time_limit_s, seed=0):
        self.programs.append((program, seed))
        if len(self.programs) == self.breaks_at:
            raise OSError("disk full")
        sample = pd.read_csv(public_dir / "sample_submission.csv")
        cells = random.Random(f"{seed}{re.findall('^# .*', program, re.MULTILINE)}").choices(range(1000), k=len(sample))
        future = Future()
        sample["malignant"] = [cell / 1000 for cell in cells]
        future.set_result(Execution("ok", 0, duration_s=0.1, submission=sample.to_csv(index=False).encode()))
        return future

    def run(self, *args, **options):
        return self.submit(*args, **options).result()

    def status(self):
        return []


@pytest.fixture
def sandbox(monkeypatch):
    answering = Answering()
    monkeypatch.setattr(evaluation, "build_sandbox", lambda config: contextlib.nullcontext(answering))
    monkeypatch.setattr(rollout, "extract_program", lambda response: f"m.fit(X)\nm.predict(X)\n# {response!r}")
    monkeypatch.setattr(evaluation, "set_threads", lambda config: None)
    return answering


@pytest.fixture
def make_run(policy, tmp_path):
    def make(name, **changes):
        run = tmp_path / name
        settings = {"task": "hello-world", "model": "tiny", "max_prompt_tok": 4000, "max_new_tok": 4, **changes}
        config = resolve(Config(run_dir=str(run), **settings))
        run.mkdir()
        (run / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
        (run / "secret").write_text("ab" * 32)
        for step in (0, 1):
            save_policy(policy, run / f"step_{step}")
            (run / f"step_{step}" / "trainer.pt").touch()
            with torch.no_grad():
                policy.value_head.weight.add_(1)
        (run / "latest").write_text("step_1")
        record = {"step": 1, "reward/mean": 0, "rollout/valid_frac": 1, "duration/mean_s": 1, "milestone/DATA_LOADED": 1}
        (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        return run

    return make


def evaluate(*runs, samples=3, **flags) -> int:
    more = [part for name, value in flags.items() for part in (f"--{name}", *([] if value is True else [str(value)]))]
    return eval.main([*map(str, runs), "--samples", str(samples), *more])


# 3 programs on val, the valid ones on test, one more run of the best; a pipeline on both splits; demonstrations twice
PER_POLICY, PER_RUN = 3 + 3 + 1, 2 * (3 + 3 + 1) + 2 * 2 + (3 + 3)


def test_an_interrupted_evaluation_goes_on_and_two_give_the_same(make_run, sandbox, capsys):
    run, other = make_run("run"), make_run("other")
    sandbox.breaks_at = PER_POLICY + 2  # in the second piece
    with pytest.raises(OSError, match="disk full"):
        evaluate(run)
    assert [path.name for path in (run / "eval").iterdir()] == ["hello-world.start.json"] and not (run / "eval.json").exists()
    sandbox.programs.clear()
    sandbox.breaks_at = None
    evaluate(run)
    assert len(sandbox.programs) == PER_RUN - PER_POLICY and "start.json: finished before" in capsys.readouterr().out
    evaluate(run)
    assert len(sandbox.programs) == PER_RUN - PER_POLICY  # nothing is left to do
    straight, first = (sandbox.programs.clear(), evaluate(other)), json.loads((run / "eval.json").read_text())
    assert straight[1] == 0 and len(sandbox.programs) == PER_RUN
    second = json.loads((other / "eval.json").read_text())
    assert first["trained"] == second["trained"] and first["start"] == second["start"]
    assert first["baselines"] == second["baselines"] and first["checks"] == second["checks"]


def test_evaluating_anew_repeats_everything_and_finds_the_same(make_run, sandbox):
    run = make_run("run")
    evaluate(run)
    before = (run / "eval.json").read_text()
    evaluate(run, anew=True)
    assert len(sandbox.programs) == 2 * PER_RUN and (run / "eval.json").read_text() == before


def test_only_what_a_change_touches_is_made_anew(make_run, sandbox, policy, capsys):
    run = make_run("run")
    evaluate(run)
    sandbox.programs.clear()
    save_policy(policy, run / "step_1")  # the value head differs: other weights under the same name
    evaluate(run)
    assert len(sandbox.programs) == PER_POLICY and "trained.json: made anew: weights" in capsys.readouterr().out
    evaluate(run, samples=2)
    assert json.loads((run / "eval.json").read_text())["start"]["n"] == 2


def test_the_files_and_numbers_of_an_evaluation(make_run, sandbox, capsys):
    run = make_run("run")
    evaluate(run)
    result = json.loads((run / "eval.json").read_text())
    assert {"task", "data", "metric", "temperature", "start", "trained", "checks", "baselines"} <= set(result)
    trained = result["trained"]
    assert trained["reported"]["score"] == trained["test"]["best"] == trained["test"]["best_of_k"]["3"]
    assert result["baselines"]["constant"]["reported"] == {"score": 0.5, "normalised": 0.0, "medal": None}
    assert result["baselines"]["demonstrations"]["n"] == 3 and 0 < result["baselines"]["tuned"]["test"] < 1
    assert result["checks"]["trained"]["program"] == "selected.py" and result["checks"]["start"]["deterministic"]
    for name in ("selected.py", "selected_start.py", "results.md", "results.csv", "results.png", "curves.png"):
        assert (run / name).stat().st_size > 0
    assert "| hello-world | real | auc ↑ | 1 | 3 |" in capsys.readouterr().out


def test_a_medal_is_of_a_valid_program_on_real_test_data(tmp_path):
    twin = load_task("random-pizza", tmp_path, "test", salt=b"x")
    real = dataclasses.replace(twin, data="real", thresholds={"gold": 0.98, "silver": 0.8, "bronze": 0.7, "median": 0.6})
    medals = [
        evaluation.Evaluation.score(SimpleNamespace(test_tasks=[task]), 0, 0.9, valid)["medal"]
        for task, valid in ((real, True), (real, False), (twin, True))
    ]
    assert medals == ["silver", None, None]


def test_a_run_whose_task_file_is_gone_says_so(make_run):
    run = make_run("run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "task": "/gone/my_task.py"}))
    with pytest.raises(UsageError, match=r"--task .*no file"):
        evaluate(run)


def test_seeds_are_one_row_of_a_table_apart(make_run, sandbox, tmp_path):
    runs = [make_run(f"run{seed}", seed=seed) for seed in (0, 1)]
    evaluate(*runs, out=tmp_path / "table")
    scores = [json.loads((run / "eval.json").read_text())["trained"]["test"]["best"] for run in runs]
    lines = {line["who"]: line for line in csv.DictReader((tmp_path / "table/results.csv").open())}
    assert float(lines["trained"]["score_mean"]) == pytest.approx(sum(scores) / 2) and lines["trained"]["seeds"] == "2"
    assert float(lines["trained"]["score_se"]) == pytest.approx(abs(scores[0] - scores[1]) / 2)


def test_folders_that_are_no_runs_of_one_table_are_refused_before_any_work(make_run, sandbox, tmp_path):
    run, same = make_run("run"), make_run("same")
    warmer, unfinished = make_run("warmer", seed=1, temperature=0.9), make_run("unfinished", seed=2)
    (unfinished / "metrics.jsonl").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases = [
        ((run, tmp_path / "empty"), {}, "no readable config.json"),
        ((run, tmp_path / "nothing"), {}, "name the folder of a run"),
        ((run, same), {}, "--seed 0"),
        ((run, run), {}, "--seed 0"),
        ((run, warmer), {}, "--temperature is 0.7 and 0.9"),
        ((run, unfinished), {}, "no finished step"),
        ((run,), {"out": tmp_path / "file"}, "--out"),
        ((run,), {"samples": 0}, "samples"),
    ]
    for runs, flags, reason in cases:
        with pytest.raises(UsageError, match=reason):
            evaluate(*runs, **flags)
    assert not sandbox.programs and not (run / "eval").exists()
    done = run_script("eval.py", tmp_path / "empty")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
