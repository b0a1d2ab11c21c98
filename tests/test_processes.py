"""Several processes by torchrun, and asynchronous collection: killed, restarted and resumed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, assert_nothing_is_left, records, same_secret, train_here

from checkpoint import latest_checkpoint
from config import parse_args
from train import main


def torchrun(ranks: int, *args, restarts: int = 0) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--max-restarts", str(restarts),
            "--standalone", "train.py", *map(str, args)]  # fmt: skip


def test_a_rank_is_killed_and_torchrun_goes_on_from_the_newest_checkpoint(straight_run, cache, tmp_path):
    """And case 20, end to end: two ranks write the programs that one writes."""
    run = tmp_path / "run"
    same_secret(straight_run, run)
    process = subprocess.Popen(
        torchrun(2, *SMALL, "--steps", "6", "--run-dir", run, restarts=2), cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**os.environ, **cache, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    while not (run / "step_1").exists():
        assert process.poll() is None, process.stderr.read()[-2000:]
        time.sleep(0.05)
    time.sleep(random.uniform(0, 0.5))
    ranks = ranks_of(run)
    assert len(ranks) == 2
    os.kill(random.choice(ranks), signal.SIGKILL)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr[-2000:]
    assert latest_checkpoint(run).name == "step_6" and [r["step"] for r in records(run)] == [*range(1, 7)]
    episodes = records(run, "episodes.jsonl")
    assert sorted(e["index"] for e in episodes) == list(range(48))
    expected = [e["response_ids"] for e in records(straight_run, "episodes.jsonl")[:8]]
    assert [e["response_ids"] for e in episodes[:8]] == expected
    assert_nothing_is_left(tmp_path)


def test_a_sharded_run_learns_the_same_and_can_be_resumed_by_one_process(straight_run, cache, tmp_path):
    """FSDP2 over two ranks for two steps, then one process without it."""
    run = tmp_path / "sharded"
    same_secret(straight_run, run)
    command = torchrun(2, *SMALL, "--shard", "--run-dir", run)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **cache}, stdout=subprocess.DEVNULL)
    while not (run / "step_2").exists():
        assert process.poll() is None
        time.sleep(0.05)
    for number in (process.pid, *ranks_of(run)):  # ranks outlive torchrun
        os.kill(number, signal.SIGKILL)
    process.wait()
    sharded, straight = records(run), records(straight_run)
    assert set(straight[0]) - set(sharded[0]) == {"policy/backbone_grad_norm", "value/grad_norm"}
    for name, value in sharded[0].items():
        assert value == pytest.approx(straight[0][name], rel=1e-3, abs=1e-5), name
    ours = [e["response_ids"] for e in records(run, "episodes.jsonl")]
    assert ours[:8] == [e["response_ids"] for e in records(straight_run, "episodes.jsonl")[:8]]
    with pytest.raises(ValueError, match="torchrun"):
        parse_args(["--resume", str(run)])
    train_here("--resume", run, "--no-shard", "--steps", "3")
    assert [r["step"] for r in records(run)] == [1, 2, 3]
    assert [e["index"] for e in records(run, "episodes.jsonl")] == list(range(24))  # each sample once, on one rank or two


def ranks_of(run: Path) -> list[int]:
    """Return the processes that train this run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            found += [int(path.parent.name)] if str(run) in words and "torch.distributed.run" not in words else []
    return found


def test_a_restart_by_torchrun_resumes_its_own_run_with_the_same_settings_only(straight_run, monkeypatch):
    command = [*SMALL, "--run-dir", str(straight_run)]
    assert parse_args(command)[1] is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert parse_args(command)[1] is None  # another launch made it: refused, as without a restart
    with pytest.raises(ValueError, match="already holds a run: go on with --resume"):
        main(command)
    assert parse_args(["--resume", str(straight_run)])[1] == straight_run
    monkeypatch.setattr(os, "getppid", os.getpid)  # what made the run is this process
    assert parse_args(command)[1] == straight_run
    with pytest.raises(ValueError, match="--seed 7"):
        parse_args([*command, "--seed", "7"])
    assert parse_args([*SMALL, "--run-dir", f"{straight_run}-new"])[1] is None  # died before the first checkpoint


def test_an_asynchronous_run_that_is_killed_skips_and_doubles_no_sample(straight_run, cache, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "train.py", *SMALL, "--collect", "async", "--run-dir", str(run)]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **cache}, stdout=subprocess.DEVNULL)
    while not (run / "step_2").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(random.uniform(0, 0.5))
    process.kill()
    process.wait()
    train_here("--resume", run)
    episodes = records(run, "episodes.jsonl")
    assert sorted(e["index"] for e in episodes) == list(range(32))  # 4 steps of 8, as without the kill
    assert len(records(run)) == 4 and all(e["policy_version"] < e["step"] for e in episodes)
