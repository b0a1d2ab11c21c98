"""Finished pieces of an evaluation, so that one that was interrupted goes on: <run>/eval/<task>.<who>.json.

A piece is what one policy, or one baseline, made of one task. It holds what it depends on: digests of the weights, of the
data and of the prompt, the settings, the versions of the libraries. A piece that depends on anything else is stale, and is
made anew. Pieces are written aside and renamed, so that one that is there is complete.
"""

import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pandas as pd

from checkpoint import TRAINER_FILE, write_atomically
from config import Config
from tasks import Task

PROTOCOL = 1  # raise it when the meaning of a number, or the way to it, changes: older pieces are then stale
SETTINGS = ("seed", "temperature", "max_prompt_tok", "max_new_tok", "sample_batch", "time_limit_s", "memory_gib",
            "precision", "instrumenter", "unsafe_sandbox", "failure_reward", "milestone_reward", "no_model_penalty",
            "repetition_penalty")  # fmt: skip
SOURCES = ("baselines.py", "bestofk.py", "checks.py", "decoder.py", "demonstrations.py", "drafts.py", "evaluation.py",
           "instrument.py", "lm_instrument.py", "model.py", "pipelines.py", "prompts.py", "recipes.py", "reward.py",
           "rollout.py", "sampler.py", "sandbox_program.py", "steps.py", "tasks/grading.py", "tasks/task.py")  # fmt: skip
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pandas", "scikit-learn")


def load_or_make(path: Path, depends: dict, make: Callable[[], dict], anew: bool = False) -> dict:
    """Return the finished piece of that file, or make it and write it. `depends`: all that its numbers depend on."""
    depends = json.loads(json.dumps(depends))  # as it is read back: tuples are lists
    stored, label = {} if anew else read_piece(path), f"{path.parent.name}/{path.name}"
    if stored.get("depends") == depends and stored["result"].get("n") in (None, depends["samples"]):  # else our fault cost some
        print(f"{label}: finished before", flush=True)
        return stored
    if stored:
        before = stored["depends"]
        changed = [name for name in {**before, **depends} if before.get(name) != depends.get(name)]
        print(f"{label}: made anew: {', '.join(changed) or 'programs were left out'}", flush=True)
    piece = {"depends": depends, **make()}
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(piece, indent=1) + "\n")
    return piece


def read_piece(path: Path) -> dict:
    """Return a piece, or {} where there is none that can be read."""
    try:
        piece = json.loads(path.read_text())
        return piece if isinstance(piece["depends"], dict) and isinstance(piece["result"], dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def common_dependencies(config: Config, samples: int, split: str, device: str) -> dict:
    """Return what every piece of a run depends on."""
    settings = {name: getattr(config, name) for name in SETTINGS}
    libraries = {name: metadata.version(name) for name in LIBRARIES}
    code = hashlib.sha256("".join(digest_file(Path(__file__).parent / name) for name in SOURCES).encode()).hexdigest()
    return {"protocol": PROTOCOL, "samples": samples, "split": split, "device": device, **settings, "libraries": libraries,
            "code": code}  # fmt: skip


def digest_weights(checkpoint: Path) -> str:
    """Return a digest of a policy's files by their content: a copied run keeps its pieces, another training does not."""
    digest = hashlib.sha256()
    for path in sorted(path for path in checkpoint.iterdir() if path.is_file()):
        if path.name not in (TRAINER_FILE, "README.md"):  # optimizer and model card change no program
            digest.update(f"{path.name}\0{digest_file(path)}\0".encode())
    return digest.hexdigest()


def digest_data(tasks: list[Task]) -> str:
    """Return a digest of the public files and the answers of a task's splits; of files that are links, size and time."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task.description.encode())
        digest.update(pd.util.hash_pandas_object(task.answers.astype(str)).to_numpy().tobytes())
        for path in sorted(path for path in task.public_dir.rglob("*") if not path.is_dir() or path.is_symlink()):
            about = path.stat()
            content = f"{about.st_size} {about.st_mtime_ns}" if path.is_symlink() else digest_file(path)
            digest.update(f"{path.relative_to(task.public_dir)}\0{content}\0".encode())
    return digest.hexdigest()


def digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**22):
            digest.update(block)
    return digest.hexdigest()
