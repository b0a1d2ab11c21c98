"""Checkpoints of a run that survive a kill at any moment, and the run's secret.

    <run>/step_N/     Hugging Face directory, value_head.safetensors, trainer.pt (optimizer, coefficients, pool, counters);
                      with LoRA the adapter is merged for all who load it, and is apart in adapter/ for the resume
    <run>/step_0/     the starting policy: KL reference, and the left column of eval.py; never deleted
    <run>/latest      name of the newest complete checkpoint

Written aside, fsynced, renamed; the pointer last. So whatever `latest` names is complete.
"""

import json
import os
import pickle
import secrets
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from lora import load_adapter
from model import ADAPTER_DIR, VALUE_HEAD_FILE, Policy, load_policy, load_value_head, save_policy

TRAINER_FILE = "trainer.pt"


class UsageError(ValueError):
    """Bad input: one line that says what to do; exit code 2."""


def save_checkpoint(run_dir: Path, step: int, policy: Policy, trainer_state: dict, *, weights=None, keep: int = 2) -> Path:
    """Write <run>/step_N and point `latest` at it; delete all but step_0 and the newest `keep`. `weights`: see save_policy."""
    target, aside, pointer = run_dir / f"step_{step}", run_dir / f".step_{step}.aside", run_dir / "latest"
    if pointer.is_file() and pointer.read_text().strip() == target.name:
        return target  # this step is saved already
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_policy(policy, aside, weights, base=(run_dir / "step_0").absolute())
    torch.save(trainer_state, aside / TRAINER_FILE)
    for path in [*aside.rglob("*"), aside]:
        _fsync(path)
    shutil.rmtree(target, ignore_errors=True)  # left by a run that died before it moved the pointer
    aside.rename(target)
    write_atomically(pointer, target.name)
    for old in _steps(run_dir)[:-keep]:
        if old not in (0, step):
            shutil.rmtree(run_dir / f"step_{old}", ignore_errors=True)
    return target


def latest_checkpoint(run_dir: Path) -> Path:
    """Return the newest complete checkpoint of a run. Raises UsageError when there is none."""
    pointer = run_dir / "latest"
    if not pointer.is_file():
        raise UsageError(f"{run_dir} is not a run that can be resumed or evaluated: it has no file 'latest'")
    directory = run_dir / pointer.read_text(errors="replace").strip()
    missing = [name for name in ("config.json", VALUE_HEAD_FILE, TRAINER_FILE) if not (directory / name).is_file()]
    if missing:
        raise UsageError(f"checkpoint {directory} is broken: {missing[0]} is missing; point {pointer} at an older step_N")
    return directory


def checkpoints_to_evaluate(run_dir: Path) -> dict[str, Path]:
    """Return {"start": step_0, "trained": the newest checkpoint}. Raises UsageError where a file of weights is missing or cut.

    Only headers are read: a policy that cannot be loaded is found before the other one has written its programs.
    """
    found = {"start": run_dir / "step_0", "trained": latest_checkpoint(run_dir)}
    for directory in found.values():
        weights = [path for path in sorted(directory.glob("*.safetensors")) if path.name != VALUE_HEAD_FILE]
        try:
            if not weights:
                raise OSError("it holds no weights (model*.safetensors)")
            for path in (*weights, directory / VALUE_HEAD_FILE):
                with safe_open(path, "pt"):
                    pass  # the length of the file is checked against its header
        except (OSError, SafetensorError) as error:
            raise UsageError(f"checkpoint {directory} is broken: {error}; copy it again from where the run was made") from error
    return found


def load_checkpoint_policy(directory: Path, device: str, base: Path | None = None) -> Policy:
    """Load the policy of a checkpoint. Raises UsageError when a file is missing or cut.

    base: the run's step_0, if the checkpoint's adapter (LoRA) is to be apart from the weights, exactly as it was trained.
    """
    try:
        if not (directory / VALUE_HEAD_FILE).is_file():
            raise ValueError(f"{VALUE_HEAD_FILE} is missing")
        policy = load_policy(str(base or directory))
        if base:
            load_adapter(policy.lm, directory / ADAPTER_DIR)
            load_value_head(policy, directory)
        return policy.to(device)
    except (OSError, ValueError, LookupError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0][:160]
        raise UsageError(f"checkpoint {directory} is broken: its policy cannot be loaded ({reason})") from error


def load_trainer_state(checkpoint: Path) -> dict:
    """Read the trainer's part of a checkpoint (tensors and plain values only)."""
    try:
        return torch.load(checkpoint / TRAINER_FILE, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, pickle.UnpicklingError) as error:
        reason = str(error).split("\n")[0][:100]
        raise UsageError(f"checkpoint {checkpoint} is broken: {TRAINER_FILE} cannot be read ({reason})") from error


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a small file so that a reader, or a crash, sees the old text or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    _fsync(path.parent)


def load_secret(run_dir: Path) -> bytes:
    """Return the run's secret, made for a new run (0600): salt of the twin's labels and of the milestone markers.

    Raises UsageError when a run has lost it: with another secret it would be another twin.
    """
    path = run_dir / "secret"
    if not path.exists() and not (run_dir / "latest").exists():
        write_atomically(path, secrets.token_hex(32), mode=0o600)
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError):
        secret = b""
    if len(secret) != 32:
        raise UsageError(f"{path} is missing or broken: copy it from where the run was made; its data cannot be made again")
    return secret


def drop_lines_from(path: Path, step: int) -> None:
    """Remove from a .jsonl file the records of `step` and later, and a half-written last line: a resume writes them again."""
    if not path.exists():
        return
    aside = path.with_name(f".{path.name}.aside")
    with open(path) as lines, open(aside, "w") as kept:
        for line in lines:
            try:
                if json.loads(line)["step"] < step and line.endswith("\n"):
                    kept.write(line)
            except (ValueError, TypeError, KeyError):  # a half-written line
                continue
    aside.rename(path)


def _steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in run_dir.glob("step_*") if path.name[5:].isdecimal())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
