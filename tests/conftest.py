"""Shared by the tests: one torch thread, a toy model, the twin of random-pizza, and a quickly warm-started tiny policy."""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in train.py
os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test reaches for the network

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import train
import warmstart
from config import parse_args
from model import Policy, build_tiny
from prompts import build_prompt
from sandbox import Sandbox
from tasks import load_task
from warmstart import build_warm_start_optimizers, encode_example, fine_tune, train_tokenizer, warm_start_settings

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


def train_here(*args) -> None:
    """Train as train.py does, in this process: no six seconds of imports."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert train.main([*map(str, args)]) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


SMALL = ["--task", "random-pizza", "--model", "tiny", "--steps", "4", "--batch-size", "8", "--minibatches", "2",
         "--max-new-tok", "80", "--duration-weight", "none", "--threads", "1", "--sandboxes", "2"]  # fmt: skip
VALID = """```python
import pandas as pd
from sklearn.linear_model import LogisticRegression
train, test = pd.read_json("train.json"), pd.read_json("test.json")
columns = ["{}"]
model = LogisticRegression().fit(train[columns], train["requester_received_pizza"])
test["requester_received_pizza"] = model.predict_proba(test[columns])[:, 1]
test[["request_id", "requester_received_pizza"]].to_csv("submission.csv", index=False)
```"""
ANSWERS = (
    VALID.format("requester_account_age_in_days_at_request"), VALID.format("requester_upvotes_plus_downvotes_at_request"),
    "```python\nimport pandas as pd\npd.nothing\n```", "```python\nimport time\ntime.sleep(0.5)\n1 / 0\n```", "No program.",
)  # fmt: skip
# What may differ between two runs of the same seed: everything that is read off a clock.
TIMED = ("time/", "duration/", "sandbox/setup_s", "sandbox/queue_s", "sandbox/run_delay_s", "sandbox/sleeper")


@pytest.fixture(scope="session")
def cache(tmp_path_factory, pizza):
    """A cache whose tiny policy knows five answers by heart: made in seconds, with rewards that differ."""
    config, prompt = parse_args(SMALL)[0], build_prompt(pizza, brief=True)
    policy = build_tiny(train_tokenizer([prompt, *ANSWERS] * 20, 1500), seed=0)
    examples = [encode_example(policy.tokenizer, prompt, answer) for answer in ANSWERS] * 35
    fine_tune(policy, examples, build_warm_start_optimizers(policy.lm, 5e-3), batch_size=5)
    folder = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOMLE_CACHE", folder)
        patch.setattr(warmstart, "_build", lambda *_: policy)
        settings = warm_start_settings("tiny", demonstrations=config.demonstrations, memory_gib=config.memory_gib)
        warmstart.load_warm_policy(pizza, settings)
    return {"NANOMLE_CACHE": folder}


@pytest.fixture(scope="session")
def straight_run(cache, tmp_path_factory):
    """Four uninterrupted steps."""
    run = tmp_path_factory.mktemp("runs") / "straight"
    done = run_script("train.py", *SMALL, "--run-dir", run, env=cache)
    assert done.returncode == 0, done.stderr
    assert len(os.listdir(cache["NANOMLE_CACHE"])) == 1  # it was found, and no other was made
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


def assert_nothing_is_left(folder: Path) -> None:
    """Within two seconds no process names the folder, which was TMPDIR, and no sandbox has its own in it."""
    give_up_at = time.monotonic() + 2
    while processes_naming(str(folder)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not processes_naming(str(folder))
    assert not list(folder.glob("nanomle-*")), "a sandbox left its folder"


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
