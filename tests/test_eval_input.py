"""eval.py and report.py on broken runs, odd files and hostile text, with the fixtures of test_eval.py."""

import json

import pytest
from test_eval import evaluate, make_run, sandbox  # noqa: F401 (fixtures)

import report
from checkpoint import UsageError


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
