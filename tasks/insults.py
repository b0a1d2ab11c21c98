"""insults: is a comment insulting to the person it answers? Comments on news and forums, the time of posting; AUC.

The comment itself is the id of a submission's row. The twin's hidden rule is in `draw`: rude words count only when they
are aimed at the reader ("you are a clown", not "he is a clown"); shouting, brevity and the hour matter too.
"""

from tasks.grading import AUC
from tasks.task import Schema

NAME, ID = "insults", "detecting-insults-in-social-commentary"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = AUC, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("Insult", "Date", "Comment"), ("Date", "Comment")

SCHEMA = Schema("train.csv", "test.csv", "sample_submission_null.csv", "csv", "Comment", ("Insult",), "binary",
                "probability", text=("Comment",))  # fmt: skip

DESCRIPTION = """\
Goal: find the comments that insult the person they are addressed to. A rude remark about somebody else is no insult.

Files:
- train.csv: Insult (1 insult, 0 not), Date, Comment.
- test.csv: Date, Comment.
- sample_submission_null.csv: a submission of the right form, with 0 everywhere.

Columns: Comment is the text, in double quotes; special characters are escaped as in Python (\\\\n, \\\\xa0). Date is the time
of posting as YYYYMMDDhhmmssZ; it is empty where it is not known.

Metric: area under the ROC curve between the predicted probability of an insult and the truth; higher is better.

Submission: submission.csv with the columns Insult and Comment (Date may stay) and one row per row of test.csv. Comment is
the id: copy it unchanged. Insult is a probability in [0, 1].
"""
