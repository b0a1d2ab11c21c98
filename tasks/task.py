"""What the rest of the project knows about a competition: its Schema, its Task, and the random stream of a twin."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.grading import GraderFault, InvalidSubmission


@dataclass(frozen=True)
class Schema:
    """Public files and columns; those in numeric, text and categorical exist in train and test alike."""

    train_file: str
    test_file: str
    sample_file: str
    file_format: str  # json (a list of records) | csv
    id_column: str
    target_columns: tuple[str, ...]
    problem: str  # binary
    prediction: str  # probability | label
    numeric: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    submission: str = "submission.csv"


@dataclass(frozen=True, eq=False)
class Task:
    """One split of one competition. The answers live only here, in memory; programs see public_dir."""

    name: str
    description: str
    metric: str
    higher_is_better: bool
    best: float  # the metric's perfect value: reward 1
    worst: float  # reward -1
    baseline: float  # score of a constant prediction
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
