"""What the rest of the project knows about a competition: its Schema, its Task, and the random stream of a twin."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.grading import GraderFault, InvalidSubmission


@dataclass(frozen=True)
class Schema:
    """What a solution program needs to know: files, columns, what to predict and in which form.

    Columns in numeric, text, categorical and codes exist in train and test alike. Submissions hold id_column and
    target_columns, in this order and nothing else. What a cell of a target column is, by `prediction`:

    - probability: of class 1; there is one target column, and train has it as 0/1 (or False/True)
    - probabilities: of the class that the column stands for; there is a column per class, and rows sum to 1. Train has
      either label_column with the names in `classes`, or, without label_column, the target columns themselves as 0/1
    - label: one of `classes`, as in train
    - value: a number within `bounds`; several target columns are several values
    - span: a piece of the first text column
    """

    train_file: str
    test_file: str
    sample_file: str
    file_format: str  # json (a list of records) | csv
    id_column: str
    target_columns: tuple[str, ...]
    problem: str  # binary | multiclass | ordinal | regression | span
    prediction: str  # probability | probabilities | label | value | span
    numeric: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    submission: str = "submission.csv"
    codes: tuple[str, ...] = ()  # strings of one length in which each place has a meaning of its own
    pair: tuple[str, ...] = ()  # the two text columns that are to be compared
    classes: tuple[str | int, ...] = ()  # of multiclass and ordinal problems, in the order of the target columns
    label_column: str = ""  # train's column of labels, where the target columns are not in train
    bounds: tuple[float, float] = (-math.inf, math.inf)  # of the values to predict
    image_files: tuple[str, ...] = ()  # paths of the JPEG image of a row of train and of test: "images/{id}.jpg"
    geometry_files: tuple[str, ...] = ()  # the same for a text file of atoms: "train/{id}/geometry.xyz"

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Return the columns of train that tell the answer."""
        return (self.label_column,) if self.label_column else self.target_columns


@dataclass(frozen=True, eq=False)
class Task:
    """One split of one competition. The answers live only here, in memory; programs see public_dir."""

    name: str
    description: str
    metric: str
    higher_is_better: bool
    best: float  # the metric's perfect value: reward 1
    worst: float  # reward -1
    baseline: float  # score of a constant prediction, as in Metric
    public_dir: Path
    thresholds: dict[str, float]  # gold, silver, bronze, median; empty unless the data are the competition's own
    time_limit_s: float
    split: str  # reward | test
    data: str  # twin | real
    schema: Schema
    answers: pd.DataFrame = field(repr=False)
    grader: Callable[[bytes, pd.DataFrame], float] = field(repr=False)

    def grade(self, submission: bytes) -> float:
        """Return the raw score. Raises InvalidSubmission with the reason, GraderFault where the fault is ours."""
        try:
            return self.grader(submission, self.answers)
        except (InvalidSubmission, GraderFault):
            raise
        except Exception as error:
            raise GraderFault(f"grading {self.name} failed: {error!r}") from error

    def normalise(self, score: float) -> float:
        """Map a raw score to [-1, 1], higher is better: r = 2 (s - worst) / (best - worst) - 1, clipped."""
        return float(np.clip(2 * (score - self.worst) / (self.best - self.worst) - 1, -1.0, 1.0))


def twin_generator(name: str, seed: int, salt: bytes) -> np.random.Generator:
    """Return the random stream of a twin; without the secret salt, the generator alone cannot rebuild its labels."""
    digest = hashlib.sha256(b"\0".join([name.encode(), str(seed).encode(), salt])).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
