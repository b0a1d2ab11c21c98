"""Read an untrusted submission and score it.

A submission arrives as the bytes of one CSV file. Every cell is read as text and converted here, so that no rule
depends on what pandas guesses. The verdicts are those of MLE-bench's graders under pandas 2.3 and scikit-learn 1.7,
except where they would report a NaN as a score or end in a traceback: both are invalid submissions here.

Covered: what is in the file, and which kind of file it is. Not covered: who wrote it.
"""

import csv
import errno
import io
import itertools
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

MAX_BYTES = 128 * 2**20  # the largest honest file, 400,000 rows with every feature left in, is about half of it
MAX_COLUMNS = 10_000
NUMBER = r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*"  # linear: no two parts can share digits
MAX_NUMBER_LENGTH = 5000
BOOLEANS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
MISSING = {"", "na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na"}
INFINITE = {"inf", "infinity"}


class InvalidSubmission(ValueError):
    """The submission breaks a rule; the message says which one."""


class GraderFault(RuntimeError):
    """Our own answers or grader are at fault: an infrastructure error, never an invalid submission."""


@dataclass(frozen=True)
class Metric:
    """A metric; `best` and `worst` are the scores of rewards 1 and -1, `baseline` that of a constant prediction.

    Where worst has no natural value, it lies as far behind the baseline as best is ahead. The baselines of accuracy and of
    the conductors' errors depend on the data; theirs are round numbers near those of the real data.
    """

    name: str
    higher_is_better: bool
    best: float
    worst: float
    baseline: float


AUC = Metric("auc", higher_is_better=True, best=1.0, worst=0.0, baseline=0.5)
COLUMN_AUC = Metric("mean_column_auc", higher_is_better=True, best=1.0, worst=0.0, baseline=0.5)
KAPPA = Metric("quadratic_kappa", higher_is_better=True, best=1.0, worst=-1.0, baseline=0.0)
PEARSON = Metric("pearson", higher_is_better=True, best=1.0, worst=-1.0, baseline=0.0)
ACCURACY = Metric("accuracy", higher_is_better=True, best=1.0, worst=0.0, baseline=0.55)
JACCARD = Metric("jaccard", higher_is_better=True, best=1.0, worst=0.0, baseline=0.0)
COLUMN_RMSLE = Metric("mean_column_rmsle", higher_is_better=False, best=0.0, worst=0.6, baseline=0.3)
LOG_LOSS_3 = Metric("log_loss", higher_is_better=False, best=0.0, worst=2 * math.log(3), baseline=math.log(3))
LOG_LOSS_99 = Metric("log_loss", higher_is_better=False, best=0.0, worst=2 * math.log(99), baseline=math.log(99))


def read_submission_file(path: Path) -> bytes:
    """Return the bytes of a submission on disk. Raises InvalidSubmission for all but a readable, regular *.csv file."""
    if Path(path).suffix.lower() != ".csv":
        raise InvalidSubmission(f"{Path(path).name!r} is not named *.csv")
    try:  # O_NONBLOCK: a FIFO must not hang us. The kind is asked of the open file, which cannot be swapped any more.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise InvalidSubmission(f"the submission cannot be opened: {reason}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO"}.get(stat.S_IFMT(mode), "a device")
            raise InvalidSubmission(f"the submission is {kind}, not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES + 1)  # one byte more than is allowed, so that the size check sees it
    finally:
        os.close(descriptor)


def parse_csv(submission: bytes, max_rows: int) -> pd.DataFrame:
    """Parse CSV bytes into a table of text cells, at most max_rows rows. Raises InvalidSubmission.

    Rows beyond max_rows are not read: with max_rows = answers + 1 they cannot hide a duplicate or unknown id.
    """
    if len(submission) > MAX_BYTES:
        raise InvalidSubmission(f"the file is larger than {MAX_BYTES} bytes")
    if b"\0" in submission:
        raise InvalidSubmission("the file holds NUL bytes: not plain CSV text")
    try:
        text = submission.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidSubmission("the file is not UTF-8 text") from None
    if not text.strip():
        raise InvalidSubmission("the file is empty")
    _check_width(text)
    try:
        return pd.read_csv(
            io.StringIO(text, newline=""), dtype=str, keep_default_na=False, na_filter=False, nrows=max_rows
        )
    except (ValueError, IndexError, OverflowError) as error:  # pandas' ParserError is a ValueError
        raise InvalidSubmission(f"the file cannot be parsed as CSV: {str(error).strip()[:200]}") from None


def _check_width(text: str) -> None:
    """Refuse millions of columns before pandas sees them: it takes minutes where the csv module takes a second."""
    csv.field_size_limit(MAX_BYTES)  # a long text in an extra column is legal
    rows = (row for row in csv.reader(io.StringIO(text, newline="")) if len(row) > 1 or "".join(row).strip())
    try:
        width = max((len(row) for row in itertools.islice(rows, 2)), default=0)  # a longer first row would become index columns
    except csv.Error as error:
        raise InvalidSubmission(f"the file cannot be parsed as CSV: {error}") from None
    if width > MAX_COLUMNS:
        raise InvalidSubmission(f"the file has {width} columns, more than {MAX_COLUMNS}")


def to_numbers(cells: pd.Series, what: str) -> np.ndarray:
    """Convert text cells to finite floats; a column of only True/False becomes 1/0. Raises InvalidSubmission."""
    if cells.isin(BOOLEANS.keys()).all():
        return cells.map(BOOLEANS).to_numpy(float)
    bad = cells[(cells.str.len() > MAX_NUMBER_LENGTH) | ~cells.str.fullmatch(NUMBER, flags=re.ASCII)]
    if len(bad):
        raise InvalidSubmission(_describe_cell(bad.iloc[0], what))
    numbers = cells.to_numpy(object).astype(float)
    if not np.isfinite(numbers).all():
        raise InvalidSubmission(f"{what} holds an infinite value")
    return numbers


def _describe_cell(cell: str, what: str) -> str:
    word = cell.strip().lower()
    if word in MISSING:
        return f"{what} holds a missing value (NaN or an empty cell)"
    if word.lstrip("+-") in INFINITE:
        return f"{what} holds an infinite value"
    return f"{what} holds {cell[:40]!r}, which is not a number"


def align(table: pd.DataFrame, answers: pd.DataFrame, id_column: str, columns: tuple[str, ...]) -> pd.DataFrame:
    """Return the submission's text cells of `columns`, its rows in the order of the answers. Raises InvalidSubmission.

    Ids compare as a set: integer ids as numbers (" 12 ", 0012 and 12.0 are one id), text ids as exact text.
    """
    for column in (id_column, *columns):
        if column not in table.columns:
            raise InvalidSubmission(f"column {column!r} is missing; found {[str(c)[:40] for c in table.columns[:8]]}")
    ids, expected = table[id_column], answers[id_column]
    if expected.duplicated().any() or expected.isna().any():
        raise GraderFault("the answers hold a duplicate or missing id")
    if pd.api.types.is_numeric_dtype(expected):
        ids = pd.Series(to_numbers(ids, f"id column {id_column!r}"))
        expected = expected.astype(float)
    if ids.duplicated().any():
        raise InvalidSubmission(f"duplicate id {_show(ids[ids.duplicated()])}")
    extra, missing = ids[~ids.isin(expected)], expected[~expected.isin(ids)]
    if len(extra):
        raise InvalidSubmission(f"extra id that the test file does not have: {_show(extra)}")
    if len(missing):
        raise InvalidSubmission(f"{len(missing)} of {len(expected)} ids are missing, such as {_show(missing)}")
    return table[list(columns)].set_axis(pd.Index(ids), axis=0).loc[expected].reset_index(drop=True)


def _show(ids: pd.Series) -> str:
    return repr(ids.tolist()[0])[:60]


def grade_auc(submission: bytes, answers: pd.DataFrame, id_column: str, target: str) -> float:
    """Return the area under the ROC curve, in [0, 1]. Raises InvalidSubmission, or GraderFault for unusable answers."""
    labels = answers[target].to_numpy()
    if set(labels) != {0, 1}:
        raise GraderFault(f"AUC needs answers of both classes, 0 and 1; found {sorted(set(labels))[:5]}")
    cells = align(parse_csv(submission, len(answers) + 1), answers, id_column, (target,))
    predictions = to_numbers(cells[target], f"column {target!r}")
    outside = predictions[(predictions < 0) | (predictions > 1)]
    if len(outside):
        raise InvalidSubmission(f"column {target!r} holds {float(outside[0])!r}, outside of [0, 1]")
    return float(roc_auc_score(labels, predictions))
