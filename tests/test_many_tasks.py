"""Several tasks in one run: prompts, pools, metrics, weights and evaluation are of each task."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import train_here
from test_rollout import FakeSandbox

import eval
import train
from checkpoint import UsageError
from config import Config, resolve
from model import save_policy
from rollout import Collector, ImprovementPool, to_experience
from runlog import episode_metrics
from tasks import expand_names, load_task
from train import load_start

SMALL = ["--demonstrations", "16", "--batch-size", "8", "--minibatches", "2", "--max-new-tok", "40", "--threads", "1"]


def test_names_expand():
    assert len(expand_names("all")) == 12 and "hello-world" not in expand_names("all")
    assert expand_names("random-acts-of-pizza,insults") == ["random-pizza", "insults"]
    with pytest.raises(ValueError, match="stands alone"):
        expand_names("all,insults")


def test_many_tasks_have_more_demonstrations():
    assert [resolve(Config(task=task, model="tiny")).demonstrations for task in ("insults", "all")] == [2400, 7200]


def test_each_prompt_is_of_one_task_and_an_episode_knows_which(policy, tmp_path):
    tasks = [load_task(name, tmp_path / name, "reward") for name in ("hello-world", "insults")]
    pools = {task.name: ImprovementPool() for task in tasks}
    collector = Collector(tasks, FakeSandbox(), seed=0, secret=b"s", pools=pools, temperature=0.7, max_prompt_tok=4000,
                          max_new_tok=4, brief=True, improve_frac=0.0)  # fmt: skip
    episodes = collector.collect(policy, range(24))
    assert {e.task for e in episodes} == {"hello-world", "insults"}
    assert all(f"Task {e.task}:" in policy.tokenizer.decode(e.prompt_ids) for e in episodes)
    names = [task.name for task in tasks]
    options = {"temperature": 0.7, "micro_batch_tok": 4096}
    index = to_experience(episodes, policy, policy, task_names=names, **options).task_index
    assert index.tolist() == [names.index(e.task) for e in episodes]
    metrics = episode_metrics(episodes, tasks, 24, 0)
    shares = [metrics[f"task/{name}/valid_frac"] for name in names]
    assert shares == [0.0, 0.0] and "rollout/score_best" not in metrics
    assert torch.equal(index, to_experience(episodes, policy, policy, task_names=names, **options).task_index)


def test_two_tasks_train_resume_and_are_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path / "cache"))
    run = str(tmp_path / "run")
    train_here("--task", "hello-world,insults", "--steps", "1", "--run-dir", run, *SMALL)
    train_here("--resume", run, "--steps", "2")
    assert {path.name for path in (tmp_path / "run" / "public").iterdir()} == {"hello-world", "insults"}
    capsys.readouterr()
    assert eval.main([run, "--samples", "2"]) == 0
    results = json.loads((tmp_path / "run" / "eval.json").read_text())["tasks"]
    assert [result["task"] for result in results] == ["hello-world", "insults"]
    assert "insults (twin data)" in capsys.readouterr().out


def test_zero_shot_needs_a_task_that_there_is_and_a_model_that_can_read_it(tmp_path, policy):
    save_policy(policy, tmp_path)
    with pytest.raises(UsageError, match="tokens"):  # the toy's prompts are too long
        eval.main(["--zero-shot", "hello-world", "--samples", "3", "--model", str(tmp_path)])
    with pytest.raises(UsageError, match="hello-world"):
        eval.main(["--zero-shot", "hello-worl"])
    with pytest.raises(UsageError, match="either"):
        eval.main([])


def test_zero_shot_says_whether_a_task_can_be_trained_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path))
    monkeypatch.setattr(eval, "load_start", lambda config, tasks: load_start(replace(config, demonstrations=8), tasks))
    assert eval.main(["--zero-shot", "hello-world", "--samples", "2"]) == 0
    assert "hello-world: 0 of 2 valid" in capsys.readouterr().out


def test_a_run_keeps_its_kind_of_prompts_when_the_model_that_it_was_made_from_is_gone(policy, tmp_path):
    task = load_task("hello-world", tmp_path / "task", "reward")
    config = Config(task="hello-world", model=str(tmp_path / "gone"), run_dir=str(tmp_path / "run"), sample_batch=1)
    for kind in ("tiny", "other"):
        policy.lm.config.nanomle_kind = kind
        save_policy(policy, tmp_path / "run" / "step_0")
        assert train.build_collector(config, [task], FakeSandbox(), b"s").brief == (kind == "tiny")
