"""tabular-may-2022: a binary label from 30 anonymous numbers and a ten-letter code; AUC.

The twin's hidden rule is in `draw`: sums of two columns that cross thresholds, letters of f_27 at two places and
the number of different letters in it, little that is linear, and many columns without meaning.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import AUC, grade_auc
from tasks.task import Schema

NAME, ID = "tabular-may-2022", "tabular-playground-series-may-2022"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = AUC, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
FEATURES = tuple(f"f_{i:02}" for i in range(31))
TRAIN_COLUMNS, TEST_COLUMNS = ("id", *FEATURES, "target"), ("id", *FEATURES)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs
RAW_TEST_ROWS = 100_000

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", ("target",), "binary", "probability",
                numeric=tuple(f for f in FEATURES if f != "f_27"), codes=("f_27",))  # fmt: skip

DESCRIPTION = """\
Goal: predict the state of a machine, 0 or 1, from simulated control data. The columns interact.

Files:
- train.csv: id, f_00 to f_30, target.
- test.csv: the same columns without target.
- sample_submission.csv: a submission of the right form, with 0.5 everywhere.

Columns: f_00 to f_06, f_19 to f_26 and f_28 are real numbers, f_07 to f_18, f_29 and f_30 small whole numbers; f_27 is a
code of ten capital letters such as ABABDADBAB; target is 0 or 1. None is missing.

Metric: area under the ROC curve between the predicted probability of target 1 and the truth; higher is better.

Submission: submission.csv with the header id,target and one row per row of test.csv; target is a probability in [0, 1].
"""


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n rows with labels, and the hidden rule's probability of label 1, (n,)."""
    table = {"id": np.arange(n)} | dict.fromkeys(FEATURES)  # in the order of the file
    shared = rng.standard_normal((n, 3))  # what makes columns correlate
    for i in (*range(7), *range(19, 27), 28):
        table[f"f_{i:02}"] = 0.6 * shared[:, i % 3] + 0.8 * rng.standard_normal(n)
    for i in range(7, 19):
        table[f"f_{i:02}"] = rng.binomial(16, 0.12 + 0.02 * (i % 4), n)
    table["f_28"] = 240 * table["f_28"]
    table["f_29"], table["f_30"] = rng.binomial(1, 0.35, n), rng.integers(0, 3, n)
    letters = np.floor(np.array([2, 12, 5, 15, 5, 5, 9, 2, 14, 20]) * rng.random((n, 10)) ** 1.6).astype(int)  # (n, 10)
    table["f_27"] = ["".join("ABCDEFGHIJKLMNOPQRST"[i] for i in row) for row in letters]
    unique = np.array([len(set(row)) for row in letters.tolist()])
    state = np.where(table["f_00"] + table["f_01"] > 1, 1.0, np.where(table["f_00"] + table["f_01"] < -1, -1.0, 0.0))
    logit = (
        2.0 * (np.abs(table["f_02"] + table["f_21"]) > 1.5) - 0.8
        + 1.6 * (table["f_30"] - 1) * state  # one column turns the meaning of two others around
        + 1.5 * (unique - 6)
        + 1.6 * ((letters[:, 7] == 1) ^ (letters[:, 0] == 1)) - 0.7
        + 1.1 * table["f_05"] + 0.6 * table["f_22"] - 0.25 * (table["f_08"] - 2)
    )  # fmt: skip
    probability = 1 / (1 + np.exp(-logit))
    table |= {f"f_{i:02}": table[f"f_{i:02}"].round(6) for i in (*range(7), *range(19, 27), 28)}
    return pd.DataFrame({**table, "target": (rng.random(n) < probability).astype(int)}), probability


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with 0.5 everywhere."""
    return hidden[["id"]].assign(target=0.5)


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    table = download.table("train.csv", TRAIN_COLUMNS)
    if len(table) <= RAW_TEST_ROWS:
        raise ValueError(f"train.csv has {len(table)} rows, no more than the {RAW_TEST_ROWS} of the test split")
    train, test = raw.split(table, RAW_TEST_ROWS)
    train["id"], test["id"] = np.arange(len(train)), np.arange(len(train), len(table))
    private = {"test.csv": test, "gold_submission.csv": test[["id", "target"]]}
    return public_files(train, test), {name: tables.to_csv(answer) for name, answer in private.items()}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_auc, id_column="id", target="target")
