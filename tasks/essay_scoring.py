"""essay-scoring: the grade of a pupil's essay, 1 to 6, as teachers give it; quadratic weighted kappa.

The twin's hidden rule is in `draw`: length counts with diminishing returns, spelling errors cost more in long essays,
paragraphs and linking words help only together.
"""

from tasks.grading import KAPPA
from tasks.task import Schema

NAME, ID = "essay-scoring", "learning-agency-lab-automated-essay-scoring-2"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = KAPPA, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("essay_id", "full_text", "score"), ("essay_id", "full_text")

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "essay_id", ("score",), "ordinal", "label",
                text=("full_text",), classes=(1, 2, 3, 4, 5, 6), bounds=(1, 6))  # fmt: skip

DESCRIPTION = """\
Goal: give a pupil's essay the grade that a teacher gave it.

Files:
- train.csv: essay_id, full_text, score.
- test.csv: essay_id, full_text.
- sample_submission.csv: a submission of the right form, with random grades.

Columns: essay_id is a text such as 000d118; full_text is the whole essay, paragraphs separated by empty lines; score is a
whole number from 1 (poor) to 6 (excellent). The middle grades are much more frequent than the outer ones.

Metric: quadratic weighted kappa between predicted and true grades (1 perfect, 0 chance); higher is better. An error counts
with the square of its size.

Submission: submission.csv with the header essay_id,score and one row per row of test.csv; score is a whole number from 1
to 6 (3.0 is one, 2.5 is not).
"""
