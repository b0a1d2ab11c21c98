"""Shared by the tests: one torch thread, a toy model, the twin of random-pizza, and a quickly warm-started tiny policy."""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in train.py
os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test reaches for the network

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from model import Policy
from sandbox import Sandbox
from tasks import load_task
from warmstart import train_tokenizer

ROOT = Path(__file__).parent.parent
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(["import pandas as pd\nprint(1)\n```python\n", "Task random-pizza"], 300)


@pytest.fixture
def policy(tokenizer):
    """A random policy whose value head is not zero."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id, initializer_range=0.2,
        bos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config), tokenizer)
    torch.nn.init.normal_(policy.value_head.weight)
    return policy


@pytest.fixture(scope="session")
def pizza(tmp_path_factory):
    return load_task("random-pizza", tmp_path_factory.mktemp("pizza"), "reward", salt=b"test")


def run_script(*args, env=None, timeout=240) -> subprocess.CompletedProcess:
    """Run one of our scripts as a user would."""
    command = [sys.executable, str(ROOT / args[0]), *map(str, args[1:])]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


SMALL = ["--task", "random-pizza", "--demonstrations", "1200", "--steps", "4", "--batch-size", "8", "--minibatches", "2",
         "--max-new-tok", "420", "--duration-weight", "none", "--threads", "1", "--sandboxes", "2"]  # fmt: skip
# What may differ between two runs of the same seed: everything that is read off a clock.
TIMED = ("time/", "duration/", "sandbox/setup_s", "sandbox/queue_s", "sandbox/run_delay_s", "sandbox/sleeper")


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


def same_secret(run: Path, other: Path) -> None:
    """Give `other` the secret of `run`, so that both have the same twin and the same markers."""
    other.mkdir()
    (other / "secret").write_text((run / "secret").read_text())


def processes_naming(text: str) -> list[str]:
    """Command lines of live processes that name the text; a sandbox's names its folder, which is under TMPDIR."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if text in line else []
    return found


LESSER_MACHINE = ("NANOMLE_SANDBOX_WITHOUT", "seccomp,landlock")  # programs may start processes and make special files


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A directory of public data."""
    directory = tmp_path_factory.mktemp("public")
    (directory / "train.json").write_text('[{"a": 1}]')
    (directory / "images").mkdir()
    (directory / "images" / "one.txt").write_text("one")
    return directory


@pytest.fixture
def lesser_machine(monkeypatch):
    """A machine without the layers that keep programs from starting processes: the monitor has to end them."""
    monkeypatch.setenv(*LESSER_MACHINE)


@pytest.fixture(scope="module")
def open_pool():
    """A sandbox on such a machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*LESSER_MACHINE)
        pool = Sandbox(memory_gib=2, submission_mib=1, unsafe=True)
    with pool:
        yield pool
