"""patent-phrases: how similar are two phrases from patents, in the light of a field of technology? Pearson correlation.

The twin's hidden rule is in `draw`: shared words, synonyms and broader terms count, and a word that has two meanings
only counts in the field where the two phrases mean the same.
"""

from tasks.grading import PEARSON
from tasks.task import Schema

NAME, ID = "patent-phrases", "us-patent-phrase-to-phrase-matching"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = PEARSON, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "anchor", "target", "context", "score"), ("id", "anchor", "target", "context")

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", ("score",), "regression", "value",
                text=("anchor", "target"), categorical=("context",), pair=("anchor", "target"), bounds=(0, 1))  # fmt: skip

DESCRIPTION = """\
Goal: rate how similar in meaning two phrases from patents are, within a field of technology.

Files:
- train.csv: id, anchor, target, context, score.
- test.csv: id, anchor, target, context.
- sample_submission.csv: the columns of a submission, with 0 everywhere (equal scores have no correlation: it is invalid).

Columns: id is a text such as 37d61fd2272659b1; anchor and target are the two phrases (target is a phrase here, not the
label); context is the field as a code of the patent classification such as A47 or H04, its letter the section; score is
0 (unrelated), 0.25 (somewhat related), 0.5 (broader, narrower or similar), 0.75 (synonym) or 1 (the same).

Metric: Pearson correlation between predicted and true scores; higher is better.

Submission: submission.csv with the header id,score and one row per row of test.csv; score is a number. Not all may be equal.
"""
