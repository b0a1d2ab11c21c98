"""train.py: bad input, schedules, exact resume after kill -9, nothing left behind."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_script

from checkpoint import latest_checkpoint
from config import Config, parse_args
from model import load_policy

SMALL = ["--task", "hello-world", "--demonstrations", "160", "--steps", "4", "--batch-size", "8", "--minibatches", "2",
         "--max-new-tok", "420", "--duration-weight", "none", "--threads", "1", "--sandboxes", "2"]  # fmt: skip
# What may differ between two runs of the same seed: everything that is read off a clock.
TIMED = ("time/", "duration/")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache of its own, so that the tests make the warm start themselves."""
    return {"NANOMLE_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="session")
def straight_run(cache, tmp_path_factory):
    """Four uninterrupted steps."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    done = run_script("train.py", *SMALL, "--run-dir", run, env=cache)
    assert done.returncode == 0, done.stderr
    return run


def records(run: Path, name="metrics.jsonl") -> list[dict]:
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines]


def weights(run: Path) -> dict:
    return load_policy(str(latest_checkpoint(run))).state_dict()


def same_secret(run: Path, other: Path) -> None:
    """Give `other` the secret of `run`, so that both have the same twin and the same markers."""
    other.mkdir()
    (other / "secret").write_text((run / "secret").read_text())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--task", "random-piza"], ["random-piza", "random-pizza"]),
        (["--tsak", "x"], ["--tsak"]),
        (["--learning-rat", "1"], ["--learning-rat"]),
        (["--steps", "many"], ["--steps", "many"]),
        (["--model", "no/such-model"], ["no/such-model"]),
        (["--resume", "/nonexistent/run"], ["/nonexistent/run", "config.json"]),
        (["--batch-size", "6", "--minibatches", "4"], ["6", "4"]),
        (["--temperature", "0"], ["--temperature", "0"]),
        (["--temperature", "nan"], ["--temperature"]),
        (["--kl-target", "-1"], ["--kl-target"]),
        (["--run-dir", "/proc/nowhere"], ["/proc/nowhere"]),
        (["--data-dir", "/nonexistent"], ["/nonexistent", "train.json"]),
        (["--duration-weight", "ipw"], ["--duration-weight", "ipw"]),
        (["--failure-reward", "1"], ["--failure-reward"]),
        (["--steps", "0"], ["--steps"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_any_long_work(args, words, tmp_path):
    env = {"HF_HUB_OFFLINE": "1", "NANOMLE_CACHE": str(tmp_path / "cache")}
    if not {"--run-dir", "--resume"} & set(args):
        args = [*args, "--run-dir", tmp_path / "run"]
    done = run_script("train.py", *args, env=env, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("train.py: ") and len(done.stderr.strip().splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_broken_run_and_an_occupied_folder_are_refused(straight_run, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((straight_run / "config.json").read_text())
    (broken / "latest").write_text("step_2")
    assert run_script("train.py", "--resume", broken).returncode == 2
    done = run_script("train.py", "--run-dir", straight_run)
    assert done.returncode == 2 and "--resume" in done.stderr


def test_every_field_is_a_flag_and_defaults_exist_once():
    config, resume, dry_run = parse_args(["--no-normalise-returns", "--clip-eps", "0.3"])
    assert (config.normalise_returns, config.clip_eps, resume, dry_run) == (False, 0.3, None, False)
    assert dataclasses.replace(parse_args([])[0], normalise_returns=False, clip_eps=0.3) == config
    assert not [f.name for f in dataclasses.fields(Config) if not f.metadata["help"]]


def test_dry_run_prints_the_plan_and_leaves_nothing(tmp_path):
    done = run_script("train.py", "--dry-run", "--run-dir", tmp_path / "run", env={"NANOMLE_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0 and "random-pizza" in done.stdout and '"learning_rate"' in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_run_leaves_what_the_readme_says(straight_run):
    names = {p.name for p in straight_run.iterdir()}
    assert {"config.json", "metrics.jsonl", "episodes.jsonl", "latest", "step_0", "step_4", "secret", "public"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert len(records(straight_run)) == 4 and len(records(straight_run, "episodes.jsonl")) == 32
    assert json.loads((straight_run / "config.json").read_text())["task"] == "hello-world"


def test_the_run_has_learnt_from_rewards_that_differ(straight_run):
    rewards = {round(e["reward"]["total"], 3) for e in records(straight_run, "episodes.jsonl")}
    assert len(rewards) > 2
    start = load_policy(str(straight_run / "step_0")).state_dict()
    assert any(not torch.equal(start[name], tensor) for name, tensor in weights(straight_run).items())


def test_killed_at_a_random_moment_and_resumed_equals_the_uninterrupted_run(straight_run, cache, tmp_path):
    """Case 22: same weights, same metrics; kill -9 twice, wherever it hits."""
    run = tmp_path / "killed"
    same_secret(straight_run, run)
    rng = random.Random(time.time_ns())
    command = [sys.executable, "train.py", *SMALL, "--run-dir", str(run)]
    for attempt in range(2):
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **cache}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        while attempt == 0 and not (run / "step_1").exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 4))
        process.kill()
        process.wait()
        command = [sys.executable, "train.py", "--resume", str(run)]
    done = run_script("train.py", "--resume", run, env=cache)
    assert done.returncode == 0, done.stderr
    assert records(run) == records(straight_run)
    expected = weights(straight_run)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(run).items())
    assert [e["response_ids"] for e in records(run, "episodes.jsonl")] == [
        e["response_ids"] for e in records(straight_run, "episodes.jsonl")
    ]


def our_processes(marker: str) -> list[str]:
    """Command lines of live processes that name the marker, or that a sandbox of ours started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line or "sandbox_zygote.py" in line:
            found.append(line)
    return found


@pytest.mark.parametrize("end", ["ctrl-c", "kill -9"])
def test_no_process_is_left_and_ctrl_c_saves(end, cache, straight_run, tmp_path):
    run = tmp_path / "run"
    before = set(our_processes(str(run)))
    command = [sys.executable, "train.py", *SMALL, "--steps", "50", "--run-dir", str(run)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **cache}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not (run / "step_1").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    time.sleep(2)
    assert set(our_processes(str(run))) <= before
    saved = int(latest_checkpoint(run).name[5:])
    if end == "ctrl-c":
        assert process.returncode == 1 and f"--resume {run}" in stderr
        assert saved == len(records(run)) >= 1


def test_two_ranks_write_the_same_programs_as_one(straight_run, cache, tmp_path):
    """Case 20, end to end: torchrun with gloo."""
    run = tmp_path / "two"
    same_secret(straight_run, run)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "train.py",
               *SMALL, "--steps", "1", "--run-dir", str(run)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **cache}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    ours = [e["response_ids"] for e in records(run, "episodes.jsonl")]
    assert ours == [e["response_ids"] for e in records(straight_run, "episodes.jsonl")[:8]]
