"""tabular-may-2022: a binary label from 30 anonymous numbers and a ten-letter code; AUC.

The twin's hidden rule is in `draw`: sums of two columns that cross thresholds, letters of f_27 at two places and
the number of different letters in it, little that is linear, and many columns without meaning.
"""

from tasks.grading import AUC
from tasks.task import Schema

NAME, ID = "tabular-may-2022", "tabular-playground-series-may-2022"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = AUC, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
FEATURES = tuple(f"f_{i:02}" for i in range(31))
TRAIN_COLUMNS, TEST_COLUMNS = ("id", *FEATURES, "target"), ("id", *FEATURES)

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
