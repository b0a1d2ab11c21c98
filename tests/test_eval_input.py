"""eval.py and report.py on broken runs, odd files and hostile text, with the fixtures of test_eval.py."""

import gc
import json
import os
import subprocess
import sys
import weakref

import pytest
from conftest import ROOT
from test_eval import evaluate, make_run, sandbox  # noqa: F401 (fixtures)

import evaluation
import report
import rollout
from checkpoint import UsageError, load_checkpoint_policy


@pytest.mark.parametrize("line", [b"{half", b"5", b"null", b'{"reward/mean": 1}', b'{"step": "one"}', b"\xff"])
def test_metrics_that_are_no_records_are_refused_by_line_before_any_work(make_run, sandbox, line):  # noqa: F811
    run = make_run("run")
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(line + b"\n")
    for command in (lambda: evaluate(run), lambda: report.main([str(run)])):
        with pytest.raises(UsageError, match=r"metrics.jsonl, line 2 is no record"):
            command()
    assert not sandbox.programs


def test_curves_of_steps_that_lack_a_metric_have_a_gap(make_run, sandbox):  # noqa: F811
    run = make_run("run")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 2, "reward/mean": 1.0}) + "\n")
    assert evaluate(run) == 0 and (run / "curves.png").stat().st_size > 0


@pytest.mark.parametrize("step", ["step_0", "step_1"])
@pytest.mark.parametrize("name", ["model.safetensors", "value_head.safetensors"])
def test_weights_that_are_cut_or_gone_are_found_before_any_work(make_run, sandbox, step, name):  # noqa: F811
    run = make_run("run")
    path = run / step / name
    path.write_bytes(path.read_bytes()[:-1])
    commands = (lambda: evaluate(run), lambda: evaluate(run, robust=True))
    for command in commands:
        with pytest.raises(UsageError, match=f"{step} is broken"):
            command()
    path.unlink()
    for command in commands:
        with pytest.raises(UsageError, match=f"{step} is broken"):
            command()
    assert not sandbox.programs


def test_a_run_without_its_starting_policy_says_so(make_run, sandbox):  # noqa: F811
    run = make_run("run")
    (run / "step_0").rename(run / "elsewhere")
    with pytest.raises(UsageError, match=r"step_0 is broken: it holds no weights"):
        evaluate(run)


def test_of_several_runs_only_one_policy_is_in_memory(make_run, sandbox, tmp_path, monkeypatch):  # noqa: F811
    alive = weakref.WeakSet()

    def load(directory, device):
        policy = load_checkpoint_policy(directory, device)
        gc.collect()
        assert not alive, "another policy is still there"
        alive.add(policy)
        return policy

    monkeypatch.setattr(evaluation, "load_checkpoint_policy", load)
    assert evaluate(*(make_run(f"run{seed}", seed=seed) for seed in (0, 1)), samples=1, out=tmp_path / "table") == 0


def test_a_run_that_was_stopped_early_is_no_seed_of_a_finished_one(make_run, sandbox):  # noqa: F811
    run, early = make_run("run"), make_run("early", seed=1)
    (early / "latest").write_text("step_0")
    with pytest.raises(UsageError, match="steps done is 1 and 0"):
        evaluate(run, early)
    assert not sandbox.programs


def test_a_hostile_program_gives_the_terminal_no_commands(make_run, sandbox, monkeypatch, capsys):  # noqa: F811
    hostile = "m.fit(X)\nm.predict(X)\n# \x1b]0;title\x07\x9b2J\r\u202e"
    monkeypatch.setattr(rollout, "extract_program", lambda response: hostile)
    run = make_run("run")
    evaluate(run)
    shown = capsys.readouterr().out
    assert "# \\u001b]0;title\\u0007\\u009b2J\\u000d\\u202e" in shown and not {*"\x1b\x07\x9b\r\u202e"} & {*shown}
    assert (run / "selected.py").read_bytes().decode() == hostile  # the file is the program


def test_a_terminal_of_few_characters_ends_no_work():
    code = "from config import run_main; run_main(lambda argv: print('± ↑'), '')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, env=environment)
    assert done.returncode == 0 and done.stdout == b"\\xb1 \\u2191\n", done.stderr
