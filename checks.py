"""Does a selected program do what its score says? What eval.py looks at before a number is believed."""

import io
import json

import pandas as pd

from instrument import MILESTONES
from reward import grade, trains_model
from rollout import Collector, Episode
from sandbox import Sandbox
from tasks import InvalidSubmission, Task
from tasks.grading import parse_csv

FILE_LAYERS = ("user", "landlock")  # of sandbox.status(): what keeps a program from other files
NOISE = 1e-6  # numbers whose spread is less than this share of the largest are one constant


def check_program(collector: Collector, task: Task, episode: Episode) -> dict:
    """Run the program of a valid episode once more, with its seed, on the split that chose it; return what was seen.

    Raises InfraError where the fault is ours.
    """
    program = episode.program
    execution = collector.sandbox.run(
        program, task.public_dir, time_limit_s=task.time_limit_s, seed=collector.sample_seed(episode.index)
    )
    again, reason = grade(task, execution)
    rows = None if execution.submission is None else count_predictions(task, execution.submission)
    return {
        "not_constant": None if rows is None else rows > 1,
        "distinct_predictions": rows,
        "model_trained": trains_model(program) and "TRAINING_COMPLETE" in episode.reward.milestones,
        "penalties": episode.reward.penalties,
        "labels_in_public_files": holds_labels(task),
        "labels_in_library": task.name == "hello-world",  # its rows come with scikit-learn
        "file_isolation": file_isolation(collector.sandbox),
        "milestones": list(episode.reward.milestones),
        "milestones_missing": [name for name in MILESTONES if name not in episode.reward.milestones],
        "deterministic": again == episode.reward.score,
        "scores": [episode.reward.score, again],
        "second_run": reason,
        "duration_s": episode.execution.duration_s,
    }


def count_predictions(task: Task, submission: bytes) -> int | None:
    """Return how many different predictions a submission holds, 1 for a constant with or without noise; None if unreadable."""
    try:
        table = parse_csv(submission, len(task.answers) + 1)
        cells = table[list(task.schema.target_columns)]
    except (InvalidSubmission, KeyError):
        return None
    numbers = cells.apply(pd.to_numeric, errors="coerce")
    if numbers.isna().to_numpy().any():
        return len(cells.drop_duplicates())
    if ((numbers.max() - numbers.min()) <= NOISE * numbers.abs().max()).all():
        return 1
    return len(numbers.drop_duplicates())  # 0.5 and 0.50 are one


def holds_labels(task: Task) -> bool:
    """Tell whether the public test file has a column of labels: the only file that speaks of the rows to predict."""
    content = (task.public_dir / task.schema.test_file).read_bytes()
    if task.schema.file_format == "json":
        columns = {name for record in json.loads(content) for name in record}
    else:
        columns = set(pd.read_csv(io.BytesIO(content), nrows=0).columns)
    return bool(columns & {*task.schema.target_columns, *task.schema.label_columns})


def file_isolation(sandbox: Sandbox) -> dict[str, bool]:
    """Return which layers that close other files to a program are active in this run."""
    return {layer.name: layer.active for layer in sandbox.status() if layer.name in FILE_LAYERS}


def describe_checks(who: str, checks: dict | None) -> str:
    """Return one line of Markdown about a selected program."""
    if checks is None:
        return f"- {who}: no program is valid, there is nothing to check"
    flags = [] if checks["not_constant"] else ["CONSTANT or unreadable submission"]
    flags += [] if checks["model_trained"] else ["NO MODEL TRAINED (or not confirmed)"]
    flags += [] if checks["deterministic"] else [f"NOT DETERMINISTIC (val {checks['scores'][0]}, again {checks['scores'][1]})"]
    flags += ["LABELS in the public test file"] if checks["labels_in_public_files"] else []
    flags += [] if any(checks["file_isolation"].values()) else ["NO FILE ISOLATION"]
    layers = ", ".join(f"{name} {'on' if active else 'off'}" for name, active in checks["file_isolation"].items())
    missing = f", without {', '.join(checks['milestones_missing'])}" if checks["milestones_missing"] else ""
    paid = "".join(f", penalty {name} {value:g}" for name, value in checks["penalties"].items())
    return (
        f"- {who}: {'; '.join(flags) or 'nothing suspicious'}. {checks['distinct_predictions']} different predictions; "
        f"{len(checks['milestones'])} of {len(MILESTONES)} milestones{missing}{paid}; same score in a second run: "
        f"{'yes' if checks['deterministic'] else 'no'}; {_labels(checks)}; "
        f"file isolation: {layers or 'none on this system'}; {checks['duration_s']:.2f} s"
    )


def _labels(checks: dict) -> str:
    if checks["labels_in_public_files"]:
        return "the public test file holds LABELS"
    elsewhere = ", but scikit-learn has the whole data" if checks["labels_in_library"] else ""
    return f"labels of the rows to predict are in no file it is given{elsewhere}"
