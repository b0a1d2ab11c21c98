"""Several tasks in one run: prompts, pools, metrics, weights and evaluation are of each task."""

import json

import pytest
import torch
from conftest import run_script
from test_rollout import FakeSandbox

from rollout import Collector, ImprovementPool, to_experience
from runlog import episode_metrics
from tasks import expand_names, load_task

SMALL = ["--demonstrations", "60", "--batch-size", "8", "--minibatches", "2", "--max-new-tok", "40", "--threads", "1"]


def test_names_expand():
    assert len(expand_names("all")) == 12 and "hello-world" not in expand_names("all")
    assert expand_names("random-acts-of-pizza,insults") == ["random-pizza", "insults"]
    with pytest.raises(ValueError, match="insults"):
        expand_names("all,insultss")


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


def test_two_tasks_train_resume_and_are_evaluated(tmp_path):
    environment, run = {"NANOMLE_CACHE": str(tmp_path / "cache")}, tmp_path / "run"
    done = run_script("train.py", "--task", "hello-world,insults", "--steps", "1", "--run-dir", run, *SMALL, env=environment)
    assert done.returncode == 0, done.stderr
    assert run_script("train.py", "--resume", run, "--steps", "2", env=environment).returncode == 0
    assert {path.name for path in (run / "public").iterdir()} == {"hello-world", "insults"}
    evaluated = run_script("eval.py", run, "--samples", "2", env=environment)
    assert evaluated.returncode == 0, evaluated.stderr
    results = json.loads((run / "eval.json").read_text())["tasks"]
    assert [result["task"] for result in results] == ["hello-world", "insults"] and "insults (twin data)" in evaluated.stdout


def test_zero_shot_says_whether_a_task_can_be_trained_on(tmp_path, policy):
    from model import save_policy

    save_policy(policy, tmp_path)  # random weights: no program of it is valid
    options = ("--samples", "3", "--model", tmp_path)
    answered = run_script("eval.py", "--zero-shot", "hello-world", *options)
    assert answered.returncode == 2 and "tokens" in answered.stderr  # its context is too short, said in one line
    assert run_script("eval.py", "--zero-shot", "hello-worl").returncode == 2
    assert run_script("eval.py").returncode == 2
