"""Competitions: what a program is told, the public files it reads, and the hidden labels that grade it.

    task = load_task("random-pizza", Path("runs/demo/public"), "reward", salt=secret)
    score = task.grade(submission_bytes)          # raw score, or InvalidSubmission with the reason
    reward = task.normalise(score)                # in [-1, 1], higher is better

Each task is one module with the same few names: NAME, ID, METRIC, SCHEMA, DESCRIPTION, make_twin, read_real,
public_files, answers, grade; a file outside of this folder is a task too, by its path. load_task never writes the labels
of a split. The agent's train file is the same in both splits; the rows to predict are the `reward` split during
training and the private `test` split once, at the end.
"""

import csv
import difflib
import functools
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd

from tasks import (
    chatbot_arena,
    essay_scoring,
    hello_world,
    insults,
    leaf_classification,
    patent_phrases,
    plant_pathology,
    random_pizza,
    spooky_author,
    tabular_dec_2021,
    tabular_may_2022,
    transparent_conductors,
    tweet_sentiment,
)
from tasks.grading import GraderFault, InvalidSubmission, Metric
from tasks.task import Schema, Task, twin_generator

__all__ = ["GraderFault", "InvalidSubmission", "Metric", "Schema", "Task",
           "expand_names", "find_task", "load_task", "task_names"]  # fmt: skip

TASKS = (
    hello_world, insults, essay_scoring, random_pizza, tweet_sentiment, tabular_may_2022, tabular_dec_2021, patent_phrases,
    plant_pathology, leaf_classification, transparent_conductors, spooky_author, chatbot_arena,
)  # fmt: skip
NEEDED = ("NAME", "ID", "METRIC", "TIME_LIMIT_S", "TRAIN_ROWS", "DATA", "SCHEMA", "DESCRIPTION",
          "public_files", "answers", "grade")  # of a task's file, and make_twin or, with an ID, read_real
SPLITS = ("reward", "test")
REWARD_FRACTION, REWARD_MAX_ROWS = 0.15, 4000  # of the public train data, where it is real


def task_names() -> list[str]:
    """Return the names that load_task knows, in a fixed order."""
    return [task.NAME for task in TASKS]


def find_task(name: str) -> ModuleType:
    """Return the task's module by our name, by MLE-bench's, or by the path of its file (my_task.py).

    Raises ValueError: with the names and the nearest one for an unknown name, with what is missing for a file.
    """
    if name.endswith(".py"):
        return _load_file(Path(name).resolve())
    known = {key: task for task in TASKS for key in (task.NAME, task.ID) if key}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown task {name!r}; the tasks are {', '.join(task_names())}.{hint}")


def expand_names(names: str) -> list[str]:
    """Return the single names in `a,b,c`; `all` stands for the twelve competitions.

    Raises ValueError for an unknown one, and for two of one NAME, or of one file name: they would share folders and metrics.
    """
    given = [task.NAME for task in TASKS if task.ID] if names == "all" else names.split(",")
    if "all" in given:
        raise ValueError(f"{names!r}: 'all' is the twelve and stands alone")
    expanded = [name if name.endswith(".py") else find_task(name).NAME for name in given]
    for called in ([Path(name).stem for name in expanded], [find_task(name).NAME for name in expanded]):
        if twice := [name for name in called if called.count(name) > 1]:
            raise ValueError(f"two tasks are called {twice[0]!r}: each needs a file name and a NAME of its own")
    return expanded


@functools.cache
def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"no file {path}: a task is a name or the path of its Python file")
    specification = importlib.util.spec_from_file_location(str(path), path)
    module = sys.modules[str(path)] = importlib.util.module_from_spec(specification)  # dataclasses look for it there
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        del sys.modules[str(path)]
        raise ValueError(f"{path} cannot be loaded: {error!r}") from error
    source = () if hasattr(module, "make_twin") or hasattr(module, "read_real") else ("make_twin",)
    absent = [name for name in (*NEEDED, *source) if not hasattr(module, name)]
    if absent:
        raise ValueError(f"{path} lacks {', '.join(absent)}: a task's file has the names of tasks/hello_world.py")
    kinds = {"NAME": str, "ID": str | None, "METRIC": Metric, "SCHEMA": Schema, "TIME_LIMIT_S": int | float, "TRAIN_ROWS": int}
    wrong = [name for name, kind in kinds.items() if not isinstance(getattr(module, name), kind)]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]} is {getattr(module, wrong[0])!r}; see the same name in tasks/hello_world.py")
    if not re.fullmatch(r"\w[\w.-]*", module.NAME):
        raise ValueError(f"{path}: NAME {module.NAME!r} names files, folders and cells of tables: letters, digits, . _ - only")
    if hasattr(module, "read_real") and not module.ID:
        raise ValueError(f"{path} has read_real and no ID: set ID to the folder of its data in --data-dir")
    return module


def load_task(
    name: str,
    root: Path,
    split: str,
    *,
    seed: int = 0,
    salt: bytes = b"",
    rows: int | None = None,
    data_dir: Path | None = None,
    time_limit_s: float | None = None,
) -> Task:
    """Write the public files of one split to <root>/<split>/ and return the task, with its answers in memory only.

    seed and salt (secret bytes) draw a twin of `rows` training rows; data_dir reads real data in MLE-bench's layout.
    Calling it again, from several processes too, gives the same bytes. time_limit_s replaces the task's own limit.
    Raises ValueError for a bad argument or data that do not fit, FileNotFoundError for a data_dir without the needed files.
    """
    module = find_task(name)
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}")
    try:
        train, hidden = make_split(module, split, seed=seed, salt=salt, rows=rows, data_dir=data_dir)
        files, answers = module.public_files(train, hidden), module.answers(hidden)
    except Exception as error:
        if isinstance(error, ValueError | OSError) or (module in TASKS and data_dir is None):
            raise
        where = f"the data in {data_dir}" if data_dir else "its own data"  # these, or the task's file, are a user's
        raise ValueError(f"{module.__file__} fails on {where}: {error!r}; check both") from error
    public_dir = Path(root).absolute() / split
    write_public(public_dir, files)
    is_bench_data = data_dir is not None
    return Task(
        name=module.NAME,
        description=module.DESCRIPTION,
        metric=module.METRIC.name,
        higher_is_better=module.METRIC.higher_is_better,
        best=module.METRIC.best,
        worst=module.METRIC.worst,
        baseline=module.METRIC.baseline,
        public_dir=public_dir,
        thresholds=read_published("thresholds.csv", module.ID) if is_bench_data else {},
        time_limit_s=module.TIME_LIMIT_S if time_limit_s is None else time_limit_s,
        split=split,
        data="real" if is_bench_data else module.DATA,
        schema=module.SCHEMA,
        answers=answers,
        grader=module.grade,
    )


def make_split(
    module: ModuleType, split: str, *, seed: int, salt: bytes, rows: int | None, data_dir: Path | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the agent's train table and the split's hidden table, labels included, of a twin or of real data.

    Raises ValueError for a bad argument, and what the task's read_real raises.
    """
    if data_dir is None and not hasattr(module, "make_twin"):
        raise ValueError(f"{module.NAME} has no twin: name its data with --data-dir")
    if data_dir is None:
        rows = module.TRAIN_ROWS if rows is None else rows
        if rows < 20:
            raise ValueError(f"--rows {rows} is too few to learn from: at least 20")
        train, reward, test = module.make_twin(twin_generator(module.NAME, seed, salt), rows)
        return train, reward if split == "reward" else test
    if not hasattr(module, "read_real"):
        raise ValueError(f"{module.NAME} has its data built in (no read_real): leave --data-dir out")
    if rows is not None:
        raise ValueError(f"--rows {rows} sizes a twin: leave it out with --data-dir")
    public, test = module.read_real(Path(data_dir) / module.ID / "prepared", with_test=split == "test")
    # A fixed seed: every run, seed and salt must hold out the same rows of the same real data.
    count = min(round(REWARD_FRACTION * len(public)), REWARD_MAX_ROWS)
    chosen = np.zeros(len(public), dtype=bool)
    chosen[np.random.Generator(np.random.PCG64(0)).permutation(len(public))[:count]] = True
    return public[~chosen], public[chosen] if split == "reward" else test


def write_public(directory: Path, files: dict[str, bytes | Path]) -> None:
    """Put read-only files into a directory, whole or not at all; keep a directory that already holds the same.

    A Path instead of bytes becomes a link to that file: images of real data are never copied. Raises ValueError for a name
    that leads out of the directory, or a directory that holds other files.
    """
    outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ValueError(f"the file name {outside[0]!r} leads out of the directory: check the ids of the data")
    if _holds(directory, files):
        return
    if directory.exists():
        strange = sorted({path.name for path in directory.iterdir()} - {Path(name).parts[0] for name in files})
        if strange:
            raise ValueError(f"{directory} holds {strange[0]!r}, which is not of this task: choose an empty directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    fresh = aside / "new"
    try:
        for name, content in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                (fresh / name).symlink_to(content.absolute())
            else:
                (fresh / name).write_bytes(content)
                (fresh / name).chmod(0o444)
        if directory.exists():
            os.rename(directory, aside / "old")
        fresh.chmod(0o755)  # programs may run as another user
        os.rename(fresh, directory)
    except OSError:
        if not _holds(directory, files):  # else another process was faster and wrote the same
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _holds(directory: Path, files: dict[str, bytes | Path]) -> bool:
    present = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir()}
    return present == set(files) and all(_is_same(directory / name, content) for name, content in files.items())


def _is_same(path: Path, content: bytes | Path) -> bool:
    if isinstance(content, Path):
        return path.is_symlink() and os.readlink(path) == str(content.absolute())
    return not path.is_symlink() and path.read_bytes() == content


def read_published(table: str, mle_id: str | None) -> dict[str, float]:
    """Return one task's row of thresholds.csv or published.csv as numbers; empty if the table has no such row."""
    with open(Path(__file__).parent / table, newline="") as file:
        row = next((row for row in csv.DictReader(file) if row.pop("task") == mle_id), {})
    skipped = ("teams", "metric", "higher_is_better")
    return {key: float(value) for key, value in row.items() if value and key not in skipped}
