"""ablate.py: statistics by hand, runs that are resumed and never repeated, bad input refused before any work."""

import contextlib
import fcntl
import json
import math
import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
from test_rollout import FakeSandbox

import ablate
import eval
from ablation_report import (
    COLUMNS,
    compare,
    describe,
    mean_of_known,
    over_seeds,
    read_curves,
    reward_without_milestones,
    summarise_run,
    windows,
)
from checkpoint import UsageError

FAKE = """
import json, sys
from pathlib import Path
args = sys.argv[1:]
run = Path(args[args.index("--resume" if "--resume" in args else "--run-dir") + 1])
(run.parents[3] / "calls").open("a").write(json.dumps(args) + "\\n")
if run.parent.name == "group":
    print("a line\\nno luck")
    sys.exit(3)
done = int((run / "latest").read_text()[5:]) if (run / "latest").exists() else 0
for step in range(done + 1, 3):
    reward = {"total": -9.5, "partial": 0.5, "score": None}
    (run / "episodes.jsonl").open("a").write(json.dumps({"step": step, "kind": "scratch", "reward": reward}) + "\\n")
    record = {"step": step, "reward/mean": -9.5, "rollout/valid_frac": 0.0, "duration/mean_s": 1.0,
              "time/collect_s": 2.0, "time/update_s": 1.0}
    (run / "metrics.jsonl").open("a").write(json.dumps(record) + "\\n")
(run / "config.json").write_text(json.dumps({"steps": 2, "run_dir": "elsewhere"}))
(run / "latest").write_text("step_2\\n")
"""


@pytest.fixture
def fake_train(tmp_path, monkeypatch):
    """A train command that leaves a run of two steps, fails for `group`, and writes down how it was called."""
    (tmp_path / "fake.py").write_text(FAKE)
    for name in ("TRAIN", "SAMPLE"):
        monkeypatch.setattr(ablate, name, [sys.executable, str(tmp_path / "fake.py")])
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def run_ablation(folder: Path, variants: str, seeds="0,1", steps="2") -> tuple[int, list[list[str]]]:
    """Return the exit code and the calls of train.py."""
    (folder / "calls").unlink(missing_ok=True)
    code = eval.main(["--ablate", "random-pizza", "--model", "tiny", "--steps", steps, "--batch-size", "8", "--seeds", seeds,
                      "--variants", variants, "--ablate-dir", str(folder / "ablate")])  # fmt: skip
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return code, [json.loads(line) for line in calls]


# the report


def episode(total, partial=0.0, score=None):
    return {"total": total, "partial": partial, "score": score}


def write_run(run: Path, steps: list[dict]) -> Path:
    """Leave what a run logs: of each step {"rewards": [...], "best": score, "valid", "duration", "collect", "update"}."""
    run.mkdir(parents=True)
    with open(run / "metrics.jsonl", "w") as metrics, open(run / "episodes.jsonl", "w") as episodes:
        for step, s in enumerate(steps, 1):
            best = {} if s.get("best") is None else {"rollout/score_best": s["best"]}
            metrics.write(json.dumps({
                "step": step, "reward/mean": sum(r["total"] for r in s["rewards"]) / len(s["rewards"]),
                "rollout/valid_frac": s.get("valid", 0.5), "duration/mean_s": s.get("duration", 1.0),
                "time/collect_s": s.get("collect", 2.0), "time/update_s": s.get("update", 0.5), **best}) + "\n")  # fmt: skip
            kinds = s.get("kinds", ["scratch"] * len(s["rewards"]))
            records = [{"step": step, "kind": kind, "reward": r} for kind, r in zip(kinds, s["rewards"], strict=True)]
            episodes.writelines(json.dumps(record) + "\n" for record in records)
    return run


def test_a_failed_program_loses_its_credit_for_milestones_and_a_valid_one_had_none():
    assert reward_without_milestones(episode(-9.6, 0.4)) == pytest.approx(-10.0)
    assert reward_without_milestones(episode(0.3, 0.7, 0.65)) == 0.3


def test_curves_by_hand(tmp_path):
    run = write_run(tmp_path / "run", [
        {"rewards": [episode(-9.5, 0.5), episode(-9.7, 0.3)], "best": None, "valid": 0.0},
        {"rewards": [episode(-9.6, 0.4), episode(0.2, 0.7, 0.6)], "best": 0.6, "kinds": ["improve", "improve"]},
        {"rewards": [episode(0.4, 0.7, 0.7), episode(0.0, 0.7, 0.5)], "best": 0.4, "valid": 1.0, "duration": 3.0,
         "collect": 5.0, "kinds": ["improve", "scratch"]},
    ])  # fmt: skip
    curves = read_curves(run, higher_is_better=True)
    np.testing.assert_allclose(curves["reward"], [-10.0, -4.9, 0.2])
    np.testing.assert_allclose(curves["scratch"], [-10.0, math.nan, 0.0])
    np.testing.assert_allclose(curves["trained_reward"], [-9.6, -4.7, 0.2])
    np.testing.assert_allclose(curves["seconds"], [2.5, 5.0, 10.5])
    np.testing.assert_allclose(curves["best_score"], [math.nan, 0.6, 0.6])
    np.testing.assert_allclose(read_curves(run, higher_is_better=False)["best_score"], [math.nan, 0.6, 0.4])
    assert summarise_run(curves) == pytest.approx({
        "reward_half": -4.9, "reward_full": 0.2, "scratch_half": math.nan, "scratch_full": 0.0,
        "trained_reward_full": 0.2, "valid_frac": 1.0, "best_score": 0.6,
        "duration_s": 3.0, "seconds": 10.5}, nan_ok=True)  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "half", "full"),
    [(1, [1], [1]), (2, [1], [2]), (3, [2], [3]), (10, [5, 6], [9, 10]), (25, [11, 12, 13, 14, 15], [21, 22, 23, 24, 25])],
)
def test_half_and_full_budget_are_windows_of_a_fifth(steps, half, full):
    numbers = np.arange(1, steps + 1)
    assert [numbers[window].tolist() for window in windows(steps)] == [half, full]


def test_a_run_whose_episodes_are_lost_is_named(tmp_path):
    run = write_run(tmp_path / "run", [{"rewards": [episode(-9.5, 0.5)], "best": None}] * 2)
    lines = (run / "episodes.jsonl").read_text()
    (run / "episodes.jsonl").write_text(lines[:-10])
    with pytest.raises(UsageError, match="no step 2"):
        read_curves(run, higher_is_better=True)


def test_a_step_without_a_number_is_left_out_of_a_window():
    assert mean_of_known(np.array([1.0, math.nan, 4.0])) == 2.5
    assert math.isnan(mean_of_known(np.array([math.nan])))


def test_means_and_standard_errors_by_hand():
    assert over_seeds([1.0, 2.0, 6.0]) == pytest.approx({"mean": 3.0, "se": math.sqrt(7 / 3), "n": 3})
    assert over_seeds([4.0, math.nan]) == {"mean": 4.0, "se": None, "n": 1}
    assert over_seeds([math.nan]) == {"mean": None, "se": None, "n": 0}


def run_numbers(value):
    return dict.fromkeys(COLUMNS, value)


def test_differences_are_paired_by_seed():
    full = {0: run_numbers(1.0), 1: run_numbers(5.0), 2: run_numbers(9.0)}
    group = {1: run_numbers(7.0), 0: run_numbers(2.0), 7: run_numbers(100.0)}  # seed 7 has no partner
    result = compare({"full": full, "group": group})
    assert result["group"]["minus_full"]["seconds"] == pytest.approx({"mean": 1.5, "se": 0.5, "n": 2})
    assert result["full"]["mean"]["reward_half"] == pytest.approx({"mean": 5.0, "se": 4 / math.sqrt(3), "n": 3})
    assert result["full"]["minus_full"]["reward_full"] == {"mean": 0.0, "se": 0.0, "n": 3}
    assert compare({"group": group})["group"]["minus_full"]["seconds"] == {"mean": None, "se": None, "n": 0}


def test_the_table_says_what_is_missing():
    numbers = {"full": {0: run_numbers(1.0), 1: run_numbers(2.0)}, "group": {0: run_numbers(math.nan), 1: run_numbers(4.0)}}
    report = {"task": "t", "metric": "auc", "higher_is_better": True, "steps": 40, "batch_size": 8, "missing_runs": 3,
              "variants": compare(numbers)}  # fmt: skip
    text = describe(report)
    assert "| full | 1.500 ± 0.500 |" in text and "| group | 4.000 (n=1) |" in text and "3 runs are not complete" in text
    assert "mean over 8 steps" in text and text.count("| group | ") == 2 and text.count("| full | ") == 1


# the runs


def test_a_complete_run_is_not_repeated_and_a_half_one_is_resumed(fake_train):
    half = fake_train / "ablate" / "random-pizza" / "full" / "seed_1"
    step = {"rewards": [episode(-9.0, 1.0)]}
    write_run(half, [step])
    (half / "latest").write_text("step_1\n")
    code, calls = run_ablation(fake_train, "full,sft-only")
    assert code == 0 and [call[:1] for call in calls] == [["--task"], ["--task"], ["--resume"], ["--task"]]
    assert calls[2] == ["--resume", str(half)]
    assert calls[0][-4:] == ["--collect", "restart", "--duration-weight", "mean"] and "--seed 0" in " ".join(calls[0])
    report = json.loads((half.parent.parent / "ablation.json").read_text())
    assert report["variants"]["full"]["seeds"]["1"]["reward_half"] == -10.0 and report["missing_runs"] == 0
    assert report["variants"]["full"]["mean"]["seconds"]["mean"] == (6.0 + 5.5) / 2
    assert run_ablation(fake_train, "full,sft-only") == (0, [])  # only draws again
    assert (half.parent.parent / "ablation.png").stat().st_size > 10_000


def test_a_failed_run_is_reported_with_the_end_of_its_log_and_the_others_go_on(fake_train, capsys):
    code, calls = run_ablation(fake_train, "group,full")
    out, err = capsys.readouterr()
    assert code == 1 and len(calls) == 4 and "no luck" in out and err.count("exit code 3") == 2
    report = json.loads((fake_train / "ablate" / "random-pizza" / "ablation.json").read_text())
    assert list(report["variants"]) == ["full"] and report["missing_runs"] == 2
    assert [call[0] for call in run_ablation(fake_train, "group,full")[1]] == ["--task"] * 2  # tried again, full is not


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.jsonl"])
def test_a_complete_run_that_has_lost_its_end_is_named(name, fake_train, capsys):
    assert run_ablation(fake_train, "full")[0] == 0
    run = fake_train / "ablate" / "random-pizza" / "full" / "seed_1"
    (run / name).write_text((run / name).read_text()[:-5])
    assert run_ablation(fake_train, "full") == (1, [])
    err = capsys.readouterr().err
    assert f"no report of random-pizza: {run}" in err and "remove the folder to make the run anew" in err


def test_the_variants_of_a_seed_share_a_twin(fake_train):
    run_ablation(fake_train, "full,default")
    folder = fake_train / "ablate" / "random-pizza"
    secrets = {(v, s): (folder / v / f"seed_{s}" / "secret").read_text() for v in ("full", "default") for s in (0, 1)}
    assert secrets["full", 0] == secrets["default", 0] != secrets["full", 1] == secrets["default", 1]
    assert (folder / "full" / "seed_0" / "secret").stat().st_mode & 0o777 == 0o600


def test_a_run_with_other_settings_is_refused(fake_train):
    run_ablation(fake_train, "full", seeds="0")
    with pytest.raises(UsageError, match=r"seed_0 holds a run with steps 2, not 3"):
        run_ablation(fake_train, "full", seeds="0", steps="3")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--ablate", "random-piza"], "random-pizza"),
        (["--ablate", "random-pizza", "--variants", "full,groups"], "unknown variant 'groups'.*no-improvement"),
        (["--ablate", "random-pizza", "--seeds", "0,x"], "--seeds 0,x"),
        (["--ablate", "random-pizza", "--seeds", "-1"], "--seed -1"),
        (["--ablate", "random-pizza", "--steps", "0"], "--steps 0"),
        (["--ablate", "random-pizza", "--batch-size", "7", "--model", "tiny"], "--batch-size 7"),
        (["--ablate", "random-pizza", "some-run"], "leave out"),
        (["--ablate", "random-pizza", "--ablate-dir", "/proc/nowhere"], "--ablate-dir"),
        (["--ablate", "random-pizza", "--data-dir", "/nonexistent"], "train.json"),
        (["some-run", "--seeds", "1"], "--seeds goes with --ablate"),
    ],
)
def test_bad_input_is_refused_before_any_work(args, reason, monkeypatch):
    monkeypatch.setattr(ablate, "run_plan", None)
    with pytest.raises(UsageError, match=reason) as error:
        eval.main(args)
    assert "\n" not in str(error.value)


def test_every_flag_is_in_the_help():
    parser = ArgumentParser()
    ablate.add_flags(parser)
    text = "".join(parser.format_help().split())  # lines break within names
    assert all(variant in text for variant in ablate.VARIANTS) and "nohup" in text and "--ablate-dir" in text


def test_a_run_that_another_process_holds_is_left_alone(tmp_path):
    with open(tmp_path / "train.log", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ablate.run_logged([sys.executable, "-c", "print('ran')"], tmp_path / "train.log") == -1
    assert (tmp_path / "train.log").read_text() == ""
    assert ablate.run_logged([sys.executable, "-c", "print('ran')"], tmp_path / "train.log") == 0
    assert (tmp_path / "train.log").read_text() == "ran\n"


def test_ctrl_c_waits_until_the_run_has_saved(tmp_path):
    program = """if True:
        import signal, sys, time
        from pathlib import Path
        def save(*_):
            time.sleep(0.5)
            Path(sys.argv[1], "saved").touch()
            sys.exit(1)
        signal.signal(signal.SIGTERM, save)
        Path(sys.argv[1], "ready").touch()
        time.sleep(60)
    """

    def interrupt():
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ablate.run_logged([sys.executable, "-c", program, str(tmp_path)], tmp_path / "train.log")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "saved").exists()


def test_the_start_is_sampled_without_an_update(policy, tmp_path, monkeypatch):
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    monkeypatch.setattr(ablate, "load_start", lambda config, tasks: policy)
    monkeypatch.setattr(ablate, "set_threads", lambda config: None)
    monkeypatch.setattr(ablate, "build_sandbox", lambda config: contextlib.nullcontext(FakeSandbox()))
    run = tmp_path / "sft-only" / "seed_0"
    flags = ["--task", "random-pizza", "--model", "tiny", "--batch-size", "8", "--max-new-tok", "4", "--max-prompt-tok", "1500"]
    assert ablate.sample_start([*flags, "--run-dir", str(run)]) == 0
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert [e["index"] for e in episodes] == list(range(8)) and {e["kind"] for e in episodes} == {"scratch"}
    curves = read_curves(run, higher_is_better=True)
    assert curves["reward"].tolist() == [-10.0] and summarise_run(curves)["reward_half"] == -10.0
    assert all((x == before[name]).all() for name, x in policy.state_dict().items()) and not (run / "latest").exists()


def test_an_interrupted_ablation_says_how_to_go_on(fake_train, monkeypatch, capsys):
    def interrupted(command, log):
        raise KeyboardInterrupt

    monkeypatch.setattr(ablate, "run_logged", interrupted)
    assert run_ablation(fake_train, "full")[0] == 1
    assert "the same command goes on" in capsys.readouterr().err
