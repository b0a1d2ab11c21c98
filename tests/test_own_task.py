"""A task of one's own in one file, on real data in MLE-bench's layout: scikit-learn's wine, diabetes and digits."""

import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits, load_wine

from checkpoint import UsageError
from config import Config, parse_args
from sandbox import Sandbox
from tasks import find_task, load_task, raw, tables
from tasks.__main__ import main
from train import load_run_tasks

MY_TASK = '''
from tasks import tables
from tasks.grading import {metric}, {grader}
from tasks.task import Schema

NAME, ID = "{name}", "{name}"
METRIC, TIME_LIMIT_S, TRAIN_ROWS, DATA = {metric}, 60.0, 0, "real"
DESCRIPTION = "Goal: predict {targets}."
SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", {targets}, "{problem}", "{prediction}",
                numeric={features}, classes={classes}, label_column="{label_column}", image_files={images})
LABELS = SCHEMA.label_columns
COLUMNS = ("id", *SCHEMA.numeric, *LABELS), ("id", *SCHEMA.numeric)


def read_real(prepared, with_test):
    return tables.read_real(ID, SCHEMA, COLUMNS, prepared, with_test)


def public_files(train, hidden):
    sample = hidden[["id"]].assign(**dict.fromkeys(SCHEMA.target_columns, {constant}))
    return tables.public_files(SCHEMA, COLUMNS[1], train, hidden, sample)


def answers(hidden):
    return tables.answers(SCHEMA, hidden)


def grade(submission, truth):
    return {grader}(submission, truth, "id", {grader_target})
'''


def write_own_task(directory: Path, name: str, table: pd.DataFrame, contents: list[bytes] | None = None, **choices) -> Path:
    """Write the task's file and its data in MLE-bench's layout; a tenth of the rows is the private test split."""
    sides = directory / "data" / name / "prepared"
    (sides / "public/images").mkdir(parents=True)
    (sides / "private").mkdir()
    train, test = raw.split(table)
    labels = [choices["label_column"]] if choices["label_column"] else list(choices["targets"])
    truth = test[["id"]].copy()
    for target, label in zip(choices["targets"], choices["classes"] or choices["targets"], strict=False):
        truth[target] = (test[labels[0]] == label).astype(int) if choices["label_column"] else test[target]
    files = {"public/train.csv": train, "public/test.csv": test.drop(columns=labels), "private/test.csv": truth}
    for path, part in files.items():
        (sides / path).write_bytes(tables.to_csv(part))
    for number, content in zip(table["id"], contents or [], strict=False):
        (sides / f"public/images/{number}.jpg").write_bytes(content)
    (directory / f"{name}.py").write_text(MY_TASK.format(name=name, **choices))
    return directory / f"{name}.py"


def own_wine(directory: Path) -> Path:
    data = load_wine()
    features = tuple(data.feature_names)
    table = pd.DataFrame(data.data, columns=features).assign(kind=data.target)
    table.insert(0, "id", np.arange(len(table)))
    return write_own_task(
        directory, "wine", table, metric="ACCURACY", grader="grade_accuracy", targets=("kind",), problem="multiclass",
        prediction="label", features=features, classes=(0, 1, 2), label_column="", images=(), constant=1,
        grader_target='"kind"',
    )  # fmt: skip


def own_diabetes(directory: Path) -> Path:
    data = load_diabetes()
    table = pd.DataFrame(data.data, columns=data.feature_names).assign(progression=data.target)
    table.insert(0, "id", np.arange(len(table)))
    return write_own_task(
        directory, "diabetes", table, metric="PEARSON", grader="grade_pearson", targets=("progression",), problem="regression",
        prediction="value", features=tuple(data.feature_names), classes=(), label_column="", images=(), constant=0,
        grader_target='"progression"',
    )  # fmt: skip


def own_digits(directory: Path) -> Path:
    data = load_digits()
    images, digits = data.images[:300], data.target[:300]
    table = pd.DataFrame({"id": np.arange(len(digits)), "digit": digits})
    classes, targets = tuple(range(10)), tuple(f"is_{i}" for i in range(10))
    contents = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray((15 * image).astype(np.uint8)).resize((32, 32)).save(buffer, "JPEG")
        contents.append(buffer.getvalue())
    return write_own_task(
        directory, "digits", table, contents, metric="LOG_LOSS_99", grader="grade_log_loss", targets=targets,
        problem="multiclass", prediction="probabilities", features=(), classes=classes, label_column="digit",
        images=("images/{id}.jpg",) * 2, constant=0.1, grader_target="SCHEMA.target_columns",
    )  # fmt: skip


@pytest.mark.parametrize("own", [own_wine, own_diabetes, own_digits])
def test_a_task_in_one_file_with_real_data(own, tmp_path, capsys):
    path = own(tmp_path)  # step 1: the file (and the data)
    assert main(["show", str(path)]) == 0  # step 2: look at it
    assert "Goal: predict" in capsys.readouterr().out
    for split in ("reward", "test"):  # step 3: train with --task FILE --data-dir DATA
        task = load_task(str(path), tmp_path / "run", split, data_dir=tmp_path / "data")
        assert task.grade(tables.to_csv(task.answers)) == pytest.approx(task.best, abs=1e-9)
        assert task.thresholds == {} and task.data == "real"
        public = sorted(p.name for p in task.public_dir.iterdir())
        assert public == [*(["images"] if task.schema.image_files else []), "sample_submission.csv", "test.csv", "train.csv"]
    with pytest.raises(ValueError, match="has no twin"):
        load_task(str(path), tmp_path / "run", "reward")


def test_programs_read_linked_images_and_cannot_remove_them(tmp_path):
    task = load_task(str(own_digits(tmp_path)), tmp_path / "run", "reward", data_dir=tmp_path / "data")
    program = """
import os
import pandas as pd
from PIL import Image
for i in pd.read_csv("test.csv")["id"]:
    assert Image.open(f"images/{i}.jpg").size == (32, 32)
    try:
        os.unlink(f"images/{i}.jpg")
    except OSError:
        continue
    raise SystemExit("removed")
os.rename("sample_submission.csv", "submission.csv")
"""
    with Sandbox(1) as sandbox:
        execution = sandbox.run(program, task.public_dir, time_limit_s=60)
    assert execution.status == "ok", execution.stderr
    assert task.grade(execution.submission) == pytest.approx(math.log(10))
    assert len(list((tmp_path / "data").rglob("*.jpg"))) == 300


def test_a_task_in_one_file_with_a_twin(tmp_path, capsys, monkeypatch):
    hello = Path(find_task("hello-world").__file__).read_text()
    path = tmp_path / "tumours.py"
    path.write_text(hello.replace('"hello-world"', '"tumours"'))
    assert main(["make", str(path), str(tmp_path / "out"), "--rows", "50"]) == 0
    assert (tmp_path / "out/private/test.csv").is_file() and load_task(str(path), tmp_path / "run", "test").name == "tumours"
    monkeypatch.chdir(tmp_path)
    config, *_ = parse_args(["--task", "tumours.py", "--model", "tiny"])
    assert (config.task, config.run_dir) == (str(path), "runs/tumours")  # a resume from elsewhere finds the file
    config, *_ = parse_args(["--task", "insults,tumours.py,essay-scoring", "--model", "tiny"])
    assert (config.task, config.run_dir) == (f"insults,{path},essay-scoring", "runs/insults,tumours,essay-scoring")
    path = tmp_path / "half.py"
    path.write_text('NAME = "half"\n')
    for name, reason in ((path, "lacks ID, METRIC, .*make_twin"), (tmp_path / "absent.py", r"no file .*absent\.py")):
        with pytest.raises(ValueError, match=reason):
            find_task(str(name))
    path.write_text("NAME = \n")
    assert main(["show", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def write_hello(path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """Write hello-world's file under another name, with some of its text replaced."""
    text = Path(find_task("hello-world").__file__).read_text().replace('"hello-world"', f'"{name}"')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_two_tasks_of_one_name_are_refused(tmp_path):
    files = [write_hello(tmp_path / path, name) for path, name in (("a/x.py", "one"), ("b/x.py", "two"), ("b/y.py", "one"))]
    insults = write_hello(tmp_path / "insults.py", "three")
    for pair in (files[:2], files[::2], (insults, "insults"), ("insults", "insults")):
        with pytest.raises(UsageError, match=r"two tasks are called '(x|one|insults)'"):
            parse_args(["--task", ",".join(map(str, pair)), "--model", "tiny"])
    with pytest.raises(UsageError, match="two tasks are called 'x'"):  # as eval.py does, without parse_args
        load_run_tasks(Config(task=f"{files[0]},{files[1]}"), tmp_path, "reward")
    tasks = load_run_tasks(Config(task=f"{files[1]},{files[2]}"), tmp_path, "reward")
    assert [task.name for task in tasks] == ["two", "one"] and tasks[0].public_dir != tasks[1].public_dir


def test_a_tasks_file_may_define_dataclasses_with_postponed_annotations(tmp_path):
    head = '"""One."""\n\nfrom __future__ import annotations\n\nfrom dataclasses import dataclass\n\n\n'
    tail = "@dataclass\nclass Row:\n    age: int = 0\n"
    for number in (1, 2):  # of one file name
        path = write_hello(tmp_path / str(number) / "x.py", f"task-{number}")
        path.write_text(head + path.read_text() + f"\n\n{tail}    number: int = {number}\n")
    assert [find_task(str(tmp_path / f"{number}/x.py")).Row().number for number in (1, 2)] == [1, 2]


def one_line_of(arguments: list[str], capsys) -> str:
    """Return the error of a command that must end with exit code 2 and one line."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def test_faults_of_a_tasks_file_are_one_line(tmp_path, capsys):
    wrong = {
        "metric": (("= AUC, 60.0, 200", '= "auc", 60.0, 200'), "METRIC is 'auc'"),
        "key": (("def answers(", "def answers(table):\n    return table['absent']\n\n\ndef _answers("), "KeyError('absent')"),
        "type": (("def answers(", "def answers(table):\n    return 1 + ''\n\n\ndef _answers("), "TypeError("),
        "no_id": (("def answers(", "def read_real(prepared, with_test):\n    pass\n\n\ndef answers("), "read_real and no ID"),
    }  # fmt: skip
    for name, (change, reason) in wrong.items():
        path = write_hello(tmp_path / f"{name}.py", name, change)
        error = one_line_of(["make", str(path), str(tmp_path / f"out_{name}")], capsys)
        assert reason in error and str(path) in error
        with pytest.raises(UsageError) as refused:
            load_run_tasks(Config(task=str(path)), tmp_path, "reward")
        assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_faults_of_our_own_twins_keep_their_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(find_task("hello-world"), "answers", lambda hidden: hidden["absent"])
    with pytest.raises(KeyError, match="absent"):
        load_task("hello-world", tmp_path, "reward")


def test_a_task_without_twin_or_without_real_data_says_what_to_do(tmp_path, capsys):
    error = one_line_of(["make", str(own_wine(tmp_path)), str(tmp_path / "out")], capsys)
    assert "has no twin to make" in error and not (tmp_path / "out").exists()
    path = write_hello(tmp_path / "tumours.py", "tumours", (", None  # ID", ', "some-id"  # ID'))
    with pytest.raises(ValueError, match=r"no read_real.*leave --data-dir out"):
        load_task(str(path), tmp_path / "run", "reward", data_dir=tmp_path / "data")


@pytest.mark.parametrize("name", ["lab/wine", "../wine", "a|b", "a\\nb", "", "=1+1", "$a", ".wine"])
def test_a_name_that_would_break_files_or_tables_is_refused(tmp_path, name):
    """It names <run>/eval/NAME.start.json, folders, TensorBoard's tags, rows of Markdown and CSV."""
    with pytest.raises(UsageError, match=r"NAME .* letters, digits"):
        parse_args(["--task", str(write_hello(tmp_path / "own.py", name)), "--model", "tiny"])
