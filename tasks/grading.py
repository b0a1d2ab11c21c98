"""Read an untrusted submission and score it.

A submission arrives as the bytes of one CSV file. Every cell is read as text and converted here, so that no rule
depends on what pandas guesses. The verdicts are those of MLE-bench's graders under pandas 2.3 and scikit-learn 1.7,
except where they would report a NaN as a score or end in a traceback: both are invalid submissions here. So are negative
values and unknown ids of transparent-conductors, which they let pass. What they leave alone is left alone: grades and cover
types out of range, plant probabilities outside of [0, 1]. Rows of probabilities must sum to 1 within their tolerances.

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
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import pearsonr
from sklearn.metrics import cohen_kappa_score, log_loss, roc_auc_score, root_mean_squared_log_error

MAX_BYTES = 128 * 2**20  # the largest honest file, 400,000 rows with every feature left in, is about half of it
MAX_COLUMNS = 10_000
NUMBER = r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*"  # linear: no two parts can share digits
MAX_NUMBER_LENGTH = 5000
BOOLEANS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
MISSING = {"", "na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na"}
INFINITE = {"inf", "infinity"}
READ_AS_MISSING = {  # texts that pandas.read_csv turns into NaN by default
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
}  # fmt: skip


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
ACCURACY = Metric("accuracy", higher_is_better=True, best=1.0, worst=0.0, baseline=0.5)
JACCARD = Metric("jaccard", higher_is_better=True, best=1.0, worst=0.0, baseline=0.0)
COLUMN_RMSLE = Metric("mean_column_rmsle", higher_is_better=False, best=0.0, worst=0.5, baseline=0.25)
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


def to_numbers(cells: pd.Series, what: str, booleans: bool = True) -> np.ndarray:
    """Convert text cells to finite floats; a column of only True/False becomes 1/0 if allowed. Raises InvalidSubmission."""
    if booleans and cells.isin(BOOLEANS.keys()).all():
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


def align(
    table: pd.DataFrame, answers: pd.DataFrame, id_column: str, columns: tuple[str, ...], text_ids: bool = False
) -> pd.DataFrame:
    """Return the submission's text cells of `columns`, its rows in the order of the answers. Raises InvalidSubmission.

    Ids compare as a set: integer ids as numbers (" 12 ", 0012 and 12.0 are one id), text ids as exact text. text_ids is for
    ids that are texts by people: they may occur several times (the first one here belongs to the first one there), and
    those that pandas reads as missing, such as NA, are one text. Integers of 2^53 and more, which floats would mix up, and
    ids of several kinds are compared as text. Raises GraderFault where the answers' own ids collide.
    """
    for column in (id_column, *columns):
        if column not in table.columns:
            raise InvalidSubmission(f"column {column!r} is missing; found {[str(c)[:40] for c in table.columns[:8]]}")
    ids, expected = table[id_column], answers[id_column].infer_objects()
    if expected.isna().any():
        raise GraderFault("the answers hold a missing id")
    if text_ids:
        ids, expected = _number_repeats(ids), _number_repeats(expected)
    elif pd.api.types.is_numeric_dtype(expected) and not expected.astype(float).duplicated().any():
        ids, expected = pd.Series(to_numbers(ids, f"id column {id_column!r}")), expected.astype(float)
    else:
        expected = expected.astype(str)
    if expected.duplicated().any():
        raise GraderFault("the answers hold a duplicate id")
    if ids.duplicated().any():
        raise InvalidSubmission(f"duplicate id {_show(ids[ids.duplicated()])}")
    extra, missing = ids[~ids.isin(expected)], expected[~expected.isin(ids)]
    if len(extra) and text_ids and extra.iloc[0].split("\x00")[0] + "\x000" in set(expected):
        raise InvalidSubmission(f"duplicate id {_show(extra)}")
    if len(extra):
        raise InvalidSubmission(f"extra id that the test file does not have: {_show(extra)}")
    if len(missing):
        raise InvalidSubmission(f"{len(missing)} of {len(expected)} ids are missing, such as {_show(missing)}")
    return table[list(columns)].set_axis(pd.Index(ids), axis=0).loc[expected].reset_index(drop=True)


def _number_repeats(ids: pd.Series) -> pd.Series:
    """Make texts different by the number of their earlier occurrences; no submission holds a NUL."""
    ids = ids.where(~ids.isin(READ_AS_MISSING), "")
    return pd.Series([f"{text}\x00{count}" for text, count in zip(ids, ids.groupby(ids).cumcount(), strict=True)], dtype=object)


def _show(ids: pd.Series) -> str:
    shown = ids.tolist()[0]
    return repr(shown.split("\x00")[0] if isinstance(shown, str) else shown)[:60]


def _read(submission: bytes, answers: pd.DataFrame, id_column: str, columns: tuple[str, ...], exact: bool = False, **options):
    """Parse and align a submission. exact refuses all other columns, and a repeated one."""
    table = parse_csv(submission, len(answers) + 1)
    strange = [str(column) for column in table.columns if column not in (id_column, *columns)]
    if exact and strange:
        raise InvalidSubmission(f"column {strange[0][:40]!r} is not asked for: exactly {id_column} and the target columns are")
    return align(table, answers, id_column, columns, **options)


def _number_columns(cells: pd.DataFrame, **options) -> np.ndarray:
    return np.column_stack([to_numbers(cells[c], f"column {c!r}", **options) for c in cells.columns])  # (rows, columns)


def _respell(cell: str) -> str:
    """Write a number that only Python's float() reads, such as 1_0 or full-width digits, in plain digits."""
    try:
        return repr(float(cell))
    except ValueError:
        return cell


def _whole_numbers(cells: pd.DataFrame, column: str) -> np.ndarray:
    numbers = to_numbers(cells[column], f"column {column!r}")
    broken = numbers[numbers != np.rint(numbers)]
    if len(broken):
        raise InvalidSubmission(f"column {column!r} holds {float(broken[0])!r}, which is not a whole number")
    return numbers


def _refuse_outside(numbers: np.ndarray, low: float, high: float, what: str) -> None:
    outside = numbers[(numbers < low) | (numbers > high)]
    if len(outside):
        raise InvalidSubmission(f"{what} holds {float(outside[0])!r}, outside of [{low:g}, {high:g}]")


def _require_classes(labels: np.ndarray, what: str) -> None:
    if set(labels) != {0, 1}:
        raise GraderFault(f"AUC needs answers of both classes, 0 and 1, in {what}; found {sorted(set(labels))[:5]}")


def grade_auc(submission: bytes, answers: pd.DataFrame, id_column: str, target: str, text_ids: bool = False) -> float:
    """Return the area under the ROC curve, in [0, 1]. Raises InvalidSubmission, or GraderFault for unusable answers."""
    labels = answers[target].to_numpy()
    _require_classes(labels, target)
    cells = _read(submission, answers, id_column, (target,), text_ids=text_ids)
    predictions = to_numbers(cells[target], f"column {target!r}")
    _refuse_outside(predictions, 0, 1, f"column {target!r}")
    return float(roc_auc_score(labels, predictions))


def grade_column_auc(submission: bytes, answers: pd.DataFrame, id_column: str, columns: tuple[str, ...]) -> float:
    """Return the mean over the columns of the AUC. Any number that Python reads is a prediction; other columns are refused.

    Raises InvalidSubmission, or GraderFault for unusable answers.
    """
    for column in columns:
        _require_classes(answers[column].to_numpy(), column)
    predictions = _number_columns(_read(submission, answers, id_column, columns, exact=True).map(_respell))
    return float(roc_auc_score(answers[list(columns)], predictions, average="macro"))


def grade_log_loss(
    submission: bytes, answers: pd.DataFrame, id_column: str, classes: tuple[str, ...], *, exact=False, id_first=False
) -> float:
    """Return the log loss over classes, each a 0/1 column of the answers; 36.04 at worst. Raises InvalidSubmission.

    exact, that is leaves and spooky: no other columns, and rows sum to 1 within 1.1e-5; arena, without it: within 5e-7.
    """
    truth = answers[list(classes)].to_numpy()  # (rows, classes)
    if not (np.isin(truth, (0, 1)).all() and (truth.sum(axis=1) == 1).all()):
        raise GraderFault("a row of the answers does not name exactly one class")
    cells = _read(submission, answers, id_column, classes, exact=exact)
    if id_first and parse_csv(submission, 1).columns[0] != id_column:
        raise InvalidSubmission(f"the first column is not {id_column!r}")
    predictions = _number_columns(cells, booleans=False)
    _refuse_outside(predictions, 0, 1, "a column of probabilities")
    sums = predictions.sum(axis=1)
    bad = sums[~np.isclose(sums, 1, rtol=1e-5, atol=1e-6) if exact else sums.round(6) != 1]
    if len(bad):
        raise InvalidSubmission(f"the probabilities of {len(bad)} rows do not sum to 1, such as {float(bad[0])!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn has a narrower tolerance
        return float(log_loss(truth.argmax(axis=1), predictions, labels=range(len(classes))))


def _labels(answers: pd.DataFrame, target: str) -> pd.Series:
    labels = answers[target].infer_objects()
    if labels.isna().any():
        raise GraderFault(f"the answers hold a missing {target!r}")
    return labels


def grade_accuracy(submission: bytes, answers: pd.DataFrame, id_column: str, target: str) -> float:
    """Return the share of right labels; a whole number, or a text, that is no class is merely wrong.

    Answers that are texts are compared as exact text. Raises InvalidSubmission, or GraderFault for a missing answer.
    """
    truth, cells = _labels(answers, target), _read(submission, answers, id_column, (target,))
    if pd.api.types.is_numeric_dtype(truth):
        return float(np.mean(truth.to_numpy(float) == _whole_numbers(cells, target)))
    if ((cells[target].str.strip() == "") & ~cells[target].isin(truth)).any():
        raise InvalidSubmission(_describe_cell("", f"column {target!r}"))
    return float(np.mean(truth.astype(str).to_numpy() == cells[target].to_numpy()))


def grade_kappa(submission: bytes, answers: pd.DataFrame, id_column: str, target: str) -> float:
    """Return Cohen's kappa with quadratic weights, in [-1, 1]; other whole numbers count as further grades.

    Raises InvalidSubmission, or GraderFault for answers that are missing, of one grade, or texts, which have no order.
    """
    truth = _labels(answers, target)
    if truth.nunique() < 2 or not pd.api.types.is_numeric_dtype(truth):
        raise GraderFault("kappa needs answers of at least two grades, which are numbers")
    predictions = _whole_numbers(_read(submission, answers, id_column, (target,)), target)
    # Scikit-learn weighs by the grades' ranks, and refuses floats of 2^63 and more: the ranks are the same to it.
    _, ranks = np.unique(np.concatenate([truth.to_numpy(float), predictions]), return_inverse=True)
    return float(cohen_kappa_score(*np.split(ranks, 2), weights="quadratic"))


def grade_pearson(submission: bytes, answers: pd.DataFrame, id_column: str, target: str) -> float:
    """Return Pearson's correlation. Raises InvalidSubmission where it is undefined, GraderFault for constant answers."""
    if answers[target].nunique() < 2:
        raise GraderFault("a correlation needs answers that differ")
    predictions = to_numbers(_read(submission, answers, id_column, (target,))[target], f"column {target!r}")
    if (predictions == predictions[0]).all():
        raise InvalidSubmission("all predictions are equal: their correlation with the truth is undefined")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant predictions are legal
        score = float(pearsonr(answers[target].astype(float), predictions)[0])
    if not math.isfinite(score):
        raise InvalidSubmission("the correlation of these predictions with the truth is not a number")
    return score


def grade_rmsle(submission: bytes, answers: pd.DataFrame, id_column: str, columns: tuple[str, ...]) -> float:
    """Return the root mean squared error of log(1 + value), averaged over the columns; any number that Python reads counts.

    Raises InvalidSubmission, also for negative values.
    """
    predictions = _number_columns(_read(submission, answers, id_column, columns).map(_respell))
    _refuse_outside(predictions, 0, math.inf, "a column of values")
    return float(root_mean_squared_log_error(answers[list(columns)], predictions))


def grade_jaccard(submission: bytes, answers: pd.DataFrame, id_column: str, target: str) -> float:
    """Return the mean Jaccard similarity of the spans' sets of lower-case words. Raises InvalidSubmission."""
    spans = _read(submission, answers, id_column, (target,))[target]
    return float(np.mean([word_jaccard(a, b) for a, b in zip(spans, answers[target], strict=True)]))


def word_jaccard(a: str, b: str) -> float:
    """Return words in both / words in either; 1 if neither has any. What pandas reads as missing has none."""
    first, second = (set("" if span in READ_AS_MISSING else span.lower().split()) for span in (a, b))
    return len(first & second) / len(first | second) if first | second else 1.0
