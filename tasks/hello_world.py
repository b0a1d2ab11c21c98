"""hello-world: scikit-learn's bundled breast cancer data, 569 real rows. It needs no download and no generator.

A program can load the same data from scikit-learn and look its labels up: the task is for trying things out.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from tasks.grading import AUC, grade_auc
from tasks.task import Schema

NAME, ID = "hello-world", None  # ID: the name in MLE-bench, which does not have this task
METRIC, TIME_LIMIT_S, TRAIN_ROWS = AUC, 60.0, 200
DATA = "real"  # what make_twin returns
TARGET = "malignant"
MEASURES = ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points",
            "symmetry", "fractal_dimension")  # fmt: skip
FEATURES = (*(f"mean_{m}" for m in MEASURES), *(f"{m}_error" for m in MEASURES), *(f"worst_{m}" for m in MEASURES))

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", (TARGET,), "binary", "probability",
                numeric=FEATURES)  # fmt: skip

DESCRIPTION = """\
Goal: tell malignant from benign breast tumours by measurements of cell nuclei in a digitised image of a needle biopsy.

Files:
- train.csv: one row per tumour: id, the 30 measurements below and the label `malignant` (1 malignant, 0 benign).
- test.csv: the same columns without `malignant`.
- sample_submission.csv: a submission of the right form, with 0.5 everywhere.

Columns: ten properties of the nuclei (radius, texture, perimeter, area, smoothness, compactness, concavity,
concave_points, symmetry, fractal_dimension), each as its mean over the nuclei (mean_radius), its standard error
(radius_error) and the mean of its three largest values (worst_radius). All are numbers; none is missing. id is a random
number without meaning.

Metric: area under the ROC curve between the predicted probability of `malignant` and the truth; higher is better.

Submission: submission.csv with the header id,malignant and one row per row of test.csv; malignant is a probability in
[0, 1].
"""


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables: the bundled rows, shuffled, under new ids. Raises ValueError."""
    bunch = load_breast_cancer()
    total = len(bunch.target)
    if rows > total - 100:
        raise ValueError(f"--rows {rows} leaves too few of the {total} rows to grade on: at most {total - 100}")
    table = pd.DataFrame(bunch.data, columns=FEATURES)
    table[TARGET] = 1 - bunch.target  # scikit-learn's 1 is benign
    table = table.iloc[rng.permutation(total)].reset_index(drop=True)
    table.insert(0, "id", 100_000 + rng.choice(900_000, size=total, replace=False))
    middle = rows + (total - rows) // 2
    return table[:rows], table[rows:middle], table[middle:]


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    sample = pd.DataFrame({"id": hidden["id"], TARGET: 0.5})
    tables = {"train.csv": train, "test.csv": hidden[["id", *FEATURES]], "sample_submission.csv": sample}
    return {name: table.to_csv(index=False, lineterminator="\n").encode() for name, table in tables.items()}


def answers(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return the id and the label of each hidden row."""
    return hidden[["id", TARGET]].reset_index(drop=True)


def grade(submission: bytes, truth: pd.DataFrame) -> float:
    """Return the AUC. Raises InvalidSubmission."""
    return grade_auc(submission, truth, "id", TARGET)
