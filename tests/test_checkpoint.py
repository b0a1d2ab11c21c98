"""checkpoint.py: whatever `latest` names is complete, whenever the process was killed (case 23)."""

import multiprocessing
import os
import random
import signal
import stat
import time

import pytest
import torch

import checkpoint
from checkpoint import (
    UsageError,
    drop_lines_from,
    latest_checkpoint,
    load_checkpoint_policy,
    load_secret,
    load_trainer_state,
    save_checkpoint,
)
from model import load_policy


def test_saved_state_comes_back(policy, tmp_path):
    save_checkpoint(tmp_path, 3, policy, {"step": 3, "tensor": torch.ones(2)})
    path = latest_checkpoint(tmp_path)
    state = load_trainer_state(path)
    assert path.name == "step_3" and state["step"] == 3 and torch.equal(state["tensor"], torch.ones(2))


def test_only_step_0_and_the_newest_are_kept(policy, tmp_path):
    for step in range(5):
        save_checkpoint(tmp_path, step, policy, {}, keep=2)
    assert sorted(p.name for p in tmp_path.glob("*step*")) == ["step_0", "step_3", "step_4"]


def save_forever(policy, directory):
    for step in range(int(latest_checkpoint(directory).name[5:]) + 1, 10_000):
        save_checkpoint(directory, step, policy, {"step": step, "weights": torch.full((100_000,), float(step))})


def test_killed_while_saving_the_newest_checkpoint_loads(policy, tmp_path):
    rng = random.Random(0)
    save_checkpoint(tmp_path, 0, policy, {"step": 0, "weights": torch.zeros(100_000)})
    for _ in range(20):
        process = multiprocessing.get_context("fork").Process(target=save_forever, args=(policy, tmp_path))
        process.start()
        time.sleep(rng.uniform(0.02, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        path = latest_checkpoint(tmp_path)
        state = load_trainer_state(path)
        assert path.name == f"step_{state['step']}" and torch.all(state["weights"] == state["step"])
        load_policy(str(path))


@pytest.mark.parametrize("harm", ["no run", "no pointer", "missing file", "cut file", "no weights", "cut weights"])
def test_a_missing_or_broken_run_is_refused_in_one_line(policy, tmp_path, harm):
    run = tmp_path / "run"
    if harm != "no run":
        save_checkpoint(run, 1, policy, {"step": 1})
    if harm == "no pointer":
        (run / "latest").unlink()
    if harm == "missing file":
        (run / "step_1" / "value_head.safetensors").unlink()
    if harm == "cut file":
        (run / "step_1" / "trainer.pt").write_bytes(b"PK")
    if harm == "no weights":
        (run / "step_1" / "model.safetensors").unlink()
    if harm == "cut weights":
        (run / "step_1" / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError) as error:
        load_checkpoint_policy(latest_checkpoint(run), "cpu")
        load_trainer_state(latest_checkpoint(run))
    assert "\n" not in str(error.value)


def test_the_secret_is_private_stable_and_different_for_every_run(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    first = load_secret(tmp_path / "a")
    assert first == load_secret(tmp_path / "a") and len(first) == 32
    assert first != load_secret(tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "a" / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, "", "ab", "not hex"])
def test_a_run_that_lost_its_secret_is_refused_not_given_another(tmp_path, content):
    (tmp_path / "latest").write_text("step_1")
    if content is not None:
        (tmp_path / "secret").write_text(content)
    with pytest.raises(UsageError, match="secret"):
        load_secret(tmp_path)


def test_lines_of_repeated_steps_and_a_half_written_line_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step":')
    drop_lines_from(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    checkpoint.drop_lines_from(tmp_path / "absent.jsonl", 3)
