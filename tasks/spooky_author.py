"""spooky-author: which of three authors of horror stories wrote a sentence? Log loss over three classes.

The twin's hidden rule is in `draw`: the three authors choose the same words with different frequencies, differ in
punctuation and in how long their sentences are; no word gives an author away.
"""

from tasks.grading import LOG_LOSS_3
from tasks.task import Schema

NAME, ID = "spooky-author", "spooky-author-identification"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = LOG_LOSS_3, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
AUTHORS = ("EAP", "HPL", "MWS")
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "text", "author"), ("id", "text")

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", AUTHORS, "multiclass", "probabilities",
                text=("text",), classes=AUTHORS, label_column="author")  # fmt: skip

DESCRIPTION = """\
Goal: tell which author wrote a sentence: Edgar Allan Poe (EAP), HP Lovecraft (HPL) or Mary Shelley (MWS).

Files:
- train.csv: id, text, author.
- test.csv: id, text.
- sample_submission.csv: a submission of the right form, with the frequencies of the authors.

Columns: id is a text such as id26305; text is one sentence; author is EAP, HPL or MWS.

Metric: log loss over the three authors, the mean of -log of the probability given to the true one; lower is better.

Submission: submission.csv with exactly the header id,EAP,HPL,MWS and one row per row of test.csv; the three probabilities of
a row are in [0, 1] and sum to 1.
"""
