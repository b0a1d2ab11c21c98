"""baselines.py: the pipelines as programs in the sandbox score as in this process; demonstrations run like a policy's."""

import numpy as np
import pytest
from test_ladders import score

from baselines import draw_demonstrations, pipeline_program, run_demonstrations, run_pipeline
from pipelines import LADDERS, predict
from rollout import Collector, ImprovementPool
from sandbox import Sandbox
from tasks import find_task, load_task, task_names
from tasks.task import twin_generator

SALT = b"baselines"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(memory_gib=4, unsafe=True) as pool:
        yield pool


def collector(task, sandbox):
    return Collector([task], sandbox, seed="0/eval", secret=b"s", pools={task.name: ImprovementPool()}, temperature=0.7,
                     max_prompt_tok=4000, max_new_tok=4, brief=True, improve_frac=0.0)  # fmt: skip


def test_every_task_has_pipelines_and_a_task_of_ones_own_has_none(tmp_path):
    assert set(LADDERS) == set(task_names())
    task = load_task("hello-world", tmp_path, "reward")
    other = type(task)(**{**vars(task), "name": "wine"})
    assert pipeline_program(other, "linear") is None and run_pipeline(None, other, None, "linear")["reason"]


@pytest.mark.parametrize("name", task_names())
def test_a_pipeline_in_the_sandbox_scores_as_in_this_process(name, tmp_path, sandbox):
    """JSON, CSV, empty dates, images and geometries reach the program as they are in memory."""
    module = find_task(name)
    val, test = (load_task(name, tmp_path, split, salt=SALT) for split in ("reward", "test"))
    train, hidden, _ = module.make_twin(twin_generator(name, 0, SALT), module.TRAIN_ROWS)
    found = run_pipeline(collector(val, sandbox), val, test, "linear")
    assert found.get("reason") is None and np.isfinite(found["test"])
    assert found["val"] == pytest.approx(score(module, hidden, predict(name, "linear", train, hidden, module.SCHEMA)), abs=1e-9)


def test_the_tuned_pipeline_runs_as_a_program(tmp_path, sandbox):
    val = load_task("random-pizza", tmp_path, "reward", salt=SALT)
    linear, tuned = (run_pipeline(collector(val, sandbox), val, None, rung) for rung in ("linear", "tuned"))
    assert set(tuned) == {"val"} and tuned["val"] > linear["val"]


def test_demonstrations_run_like_a_policys_programs_and_hold_its_mistakes(tmp_path, sandbox):
    task = load_task("random-pizza", tmp_path, "reward", salt=SALT)
    drawn = [(collector(task, sandbox), n) for n in (4, 8)]
    some, more = (run_demonstrations(c, draw_demonstrations(c, n, 0.5)) for c, n in drawn)
    assert [e.program for e in some] == [e.program for e in more[:4]]  # drawn by index
    assert [e.reward.total for e in some] == [e.reward.total for e in more[:4]]
    valid = [e for e in more if e.reward.score is not None]
    assert 0 < len(valid) < 8 and all(len(e.reward.milestones) == 7 for e in valid)
