"""train.py: bad input, schedules, exact resume after kill -9, nothing left behind."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, assert_nothing_is_left, processes_naming, records, run_script, same_secret

import train
from checkpoint import UsageError, latest_checkpoint
from config import Config, parse_args
from model import load_policy
from ranks import cores_per_rank


def newest_step(run: Path) -> int:
    return int(latest_checkpoint(run).name[5:]) if (run / "latest").exists() else 0


def weights(run: Path) -> dict:
    return load_policy(str(latest_checkpoint(run))).state_dict()


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
        (["--duration-weight", "ipv"], ["--duration-weight", "ipw"]),
        (["--collect", "asynchronous"], ["--collect", "async"]),
        (["--task", "insults,random-piza"], ["random-piza", "random-pizza"]),
        (["--failure-reward", "1"], ["--failure-reward"]),
        (["--steps", "0"], ["--steps"]),
        (["--seed", str(2**64)], ["--seed"]),
        (["--data-dir", ""], ["--data-dir"]),
        (["--model", ""], ["--model"]),
        (["--temperature", "1e-320"], ["--temperature"]),
        (["--time-limit-s", "1e9"], ["--time-limit-s"]),
        (["--run-dir", "runs/\udcff"], ["--run-dir"]),
        (["--max-new-tok", "-5"], ["--max-new-tok", "-5"]),
        (["--max-new-tok", "2000"], ["--max-new-tok 2000", "2048"]),
    ],
)
def test_bad_input_is_one_line_before_any_long_work(args, words, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path / "cache"))
    if not {"--run-dir", "--resume"} & set(args):
        args = [*args, "--run-dir", str(tmp_path / "run")]
    with pytest.raises(UsageError) as error:
        train.main(args)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run" / "config.json").exists()


def test_bad_input_ends_with_exit_code_2_and_one_line():
    done = run_script("train.py", "--task", "random-piza")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("train.py: ") and len(done.stderr.strip().splitlines()) == 1


def test_a_cache_that_cannot_be_written_is_found_out_before_the_warm_start(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path / "file" / "x"))
    with pytest.raises(UsageError, match="NANOMLE_CACHE"):
        train.main(["--run-dir", str(tmp_path / "run")])


def test_a_broken_run_and_an_occupied_folder_are_refused(straight_run, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text((straight_run / "config.json").read_text())
    (tmp_path / "latest").write_text("step_2")
    run = str(straight_run)
    refused = [
        (["--resume", str(tmp_path)], "step_2"),
        (["--run-dir", run], "--resume"),
        (["--resume", run, "--steps", "-3"], "--steps"),
        (["--resume", run, "--steps", "2"], "4 steps already"),
        (["--resume", run, "--learning-rate", "1"], "--learning-rate"),
    ]
    for args, word in refused:
        with pytest.raises(UsageError, match=word):
            train.main(args)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UsageError, match="--batch-size"):
        train.main(["--resume", run])


def test_a_run_from_before_advantage_had_its_present_meaning_is_not_resumed_as_another(tmp_path):
    stored = {**dataclasses.asdict(Config(model="tiny", run_dir=str(tmp_path))), "advantage": "global"}
    del stored["whitening"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    (tmp_path / "latest").write_text("step_2\n")
    (tmp_path / "step_2").mkdir()
    for name in ("config.json", "value_head.safetensors", "trainer.pt"):
        (tmp_path / "step_2" / name).touch()
    with pytest.raises(UsageError, match="--advantage global must be one of gae, group"):
        parse_args(["--resume", str(tmp_path)])


def test_restarts_by_torchrun_on_several_nodes_are_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_MAX_RESTARTS": 0}.items():
        monkeypatch.setenv(name, str(value))
    parse_args([])
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(UsageError, match="by hand with --resume runs/x"):
        parse_args(["--run-dir", "runs/x"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    parse_args([])


def test_threads_and_sandboxes_share_the_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    by_mode = [train.default_sandboxes(Config(collect=mode)) for mode in ("sync", "async", "restart")]
    assert cores_per_rank() == 2 and by_mode == [2, 1, 1]


def test_every_field_is_a_flag_and_defaults_exist_once():
    config, resume, dry_run = parse_args(["--no-normalise-returns", "--clip-eps", "0.3"])
    assert (config.normalise_returns, config.clip_eps, resume, dry_run) == (False, 0.3, None, False)
    assert dataclasses.replace(parse_args([])[0], normalise_returns=False, clip_eps=0.3) == config
    assert not [f.name for f in dataclasses.fields(Config) if not f.metadata["help"]]


def test_dry_run_prints_the_plan_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path / "cache"))
    assert train.main(["--dry-run", "--run-dir", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "Task random-pizza" in out and '"learning_rate"' in out and not list(tmp_path.iterdir())


def test_a_run_leaves_what_the_readme_says(straight_run):
    names = {p.name for p in straight_run.iterdir()}
    assert {"config.json", "metrics.jsonl", "episodes.jsonl", "latest", "step_0", "step_4", "secret", "public"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert len(records(straight_run)) == 4 and len(records(straight_run, "episodes.jsonl")) == 32
    assert json.loads((straight_run / "config.json").read_text())["task"] == "random-pizza"


def test_the_final_checkpoint_has_a_model_card(straight_run):
    card = (straight_run / "step_4" / "README.md").read_text()
    assert "tiny after 4 PPO steps of 8 programs on random-pizza (twin data)" in card
    assert f"--run-dir {straight_run}" in card and "| `rollout/valid_frac` |" in card and "{" not in card
    assert not (straight_run / "step_3" / "README.md").exists()


def test_the_run_has_learnt_from_rewards_that_differ(straight_run):
    rewards = {round(e["reward"]["total"], 3) for e in records(straight_run, "episodes.jsonl")}
    assert len(rewards) > 2
    start = load_policy(str(straight_run / "step_0")).state_dict()
    assert any(not torch.equal(start[name], tensor) for name, tensor in weights(straight_run).items())


def test_killed_at_a_random_moment_and_resumed_equals_the_uninterrupted_run(straight_run, cache, tmp_path):
    """Case 22: same weights, same metrics; kill -9 twice, wherever it hits; no process is left."""
    run = tmp_path / "killed"
    same_secret(straight_run, run)
    rng = random.Random(time.time_ns())
    command, newest = [sys.executable, "train.py", *SMALL, "--run-dir", str(run)], 0
    for attempt in range(2):
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **cache, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        while process.poll() is None and newest_step(run) == newest:
            time.sleep(0.02)
        assert process.poll() in (None, 0), process.stdout.read()
        assert attempt or len(processes_naming(str(tmp_path))) >= 2  # the trainer and its sandbox: the check below can fail
        time.sleep(rng.uniform(0, 1.5))
        process.kill()
        process.wait()
        assert_nothing_is_left(tmp_path)
        command, newest = [sys.executable, "train.py", "--resume", str(run)], newest_step(run)
    done = run_script("train.py", "--resume", run, env=cache)
    assert done.returncode == 0, done.stderr
    assert records(run) == records(straight_run)
    expected = weights(straight_run)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(run).items())
    assert [e["response_ids"] for e in records(run, "episodes.jsonl")] == [
        e["response_ids"] for e in records(straight_run, "episodes.jsonl")
    ]


def test_a_second_signal_stops_at_once(monkeypatch):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    now = [0.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    stopping = train._stop_after_this_step()
    for now[0] in (0.0, 0.9):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopping
    now[0] = 1.1
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGINT, before[0]), signal.signal(signal.SIGTERM, before[1])


def test_only_rank_0_makes_the_start(straight_run, tmp_path, monkeypatch):
    """The others load policy and reference from step_0: they may have no cache, and would make another policy."""

    class LoadedError(Exception):
        pass

    def stop(config):
        raise LoadedError

    run = shutil.copytree(straight_run, tmp_path / "run")
    (run / "latest").write_text("step_0")
    monkeypatch.setattr(train, "init_processes", lambda: 1)
    monkeypatch.setattr(train, "load_start", None)
    monkeypatch.setattr(train, "build_sandbox", stop)
    with pytest.raises(LoadedError):
        train.main([*SMALL, "--run-dir", str(run)])


def test_ctrl_c_saves_and_no_process_is_left(cache, straight_run, tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "train.py", *SMALL, "--steps", "50", "--run-dir", str(run)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **cache, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (run / "step_1").exists():
        assert process.poll() is None
        time.sleep(0.05)
    assert len(processes_naming(str(tmp_path))) >= 2
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert_nothing_is_left(tmp_path)
    assert process.returncode == 1 and f"--resume {run}" in stderr
    assert newest_step(run) == len(records(run)) >= 1
