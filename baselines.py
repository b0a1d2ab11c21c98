"""Fixed baselines of a task: what a policy has to beat. They run in the sandbox and are graded like its programs.

    constant          the score of a constant prediction, tasks.Metric.baseline
    linear, tuned     the reference pipelines of pipelines.py, as one program each
    demonstrations    as many programs as the policy writes, drawn from what the warm start imitates, its mistakes included

A task of a user's own has no pipelines; a schema that recipes.py does not cover has no demonstrations.
"""

import random
from pathlib import Path

import pipelines
from demonstrations import sample_demonstration
from prompts import extract_program
from reward import grade
from rollout import Collector, Episode, Run
from sampler import Generation
from tasks import Task, find_task

SCHEMA_FIELDS = ("train_file", "test_file", "file_format", "id_column", "target_columns", "numeric", "categorical",
                 "image_files", "geometry_files")  # fmt: skip


def pipeline_program(task: Task, rung: str) -> str | None:
    """Return the program of a reference pipeline, or None for a task that has none."""
    if task.name not in pipelines.LADDERS or task.schema != find_task(task.name).SCHEMA:
        return None
    schema = {name: getattr(task.schema, name) for name in SCHEMA_FIELDS}
    source = Path(pipelines.__file__).read_text()
    return f"{source}\n\nfrom types import SimpleNamespace\n\nmain({task.name!r}, {rung!r}, SimpleNamespace(**{schema!r}))\n"


def run_pipeline(collector: Collector, val_task: Task, test_task: Task | None, rung: str) -> dict:
    """Return the raw scores of a pipeline on val and test, None where it failed, and then the reason.

    Raises InfraError where the fault is ours.
    """
    program = pipeline_program(val_task, rung)
    if program is None:
        return {"reason": "no pipeline is written for this task"}
    result = {}
    for split, task in (("val", val_task), ("test", test_task)):
        if task is not None:
            execution = collector.sandbox.run(program, task.public_dir, time_limit_s=task.time_limit_s)
            result[split], reason = grade(task, execution)
            result |= {"reason": reason} if reason else {}
    return result


def draw_demonstrations(collector: Collector, n: int, mistake_share: float) -> list[Run]:
    """Return n programs of the warm start's kind, not started. Raises ValueError for a task that is not covered."""
    runs = []
    for index in range(n):
        rng = random.Random(f"{collector.seed}/demonstration/{index}")
        _, response = sample_demonstration(collector.task_of(index).schema, rng, improve_share=0.0, mistake_share=mistake_share)
        runs.append(Run(index, "scratch", [], Generation([], [], "stop"), response, extract_program(response), 0))
    return runs


def run_demonstrations(collector: Collector, runs: list[Run]) -> list[Episode]:
    """Run and reward them like a policy's programs."""
    for run in runs:
        collector.start(run)
    return collector.finish(runs)
