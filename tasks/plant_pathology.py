"""plant-pathology: is an apple leaf healthy, has it rust, scab or several diseases? Photographs; mean column AUC.

The twin's hidden rule is in `draw`: the number and colour of the spots on the leaf decide; light, colour cast, position of
the leaf and dirt on the ground beside it do not. Both diseases together are rare.
"""

from tasks.grading import COLUMN_AUC
from tasks.task import Schema

NAME, ID = "plant-pathology", "plant-pathology-2020-fgvc7"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = COLUMN_AUC, 60.0, 150, 300
DATA = "twin"  # what make_twin returns
STATES = ("healthy", "multiple_diseases", "rust", "scab")
TRAIN_COLUMNS, TEST_COLUMNS = ("image_id", *STATES), ("image_id",)

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "image_id", STATES, "multiclass", "probabilities",
                classes=STATES, image_files=("images/{image_id}.jpg",) * 2)  # fmt: skip

DESCRIPTION = """\
Goal: tell from a photograph of an apple leaf whether it is healthy, has rust, has scab or has more than one disease.

Files:
- train.csv: image_id, healthy, multiple_diseases, rust, scab.
- test.csv: image_id.
- images/<image_id>.jpg: the colour photographs of both tables.
- sample_submission.csv: a submission of the right form, with 0.25 everywhere.

Columns: image_id is a text such as Train_12; of the four others exactly one is 1, the rest 0. Rust and scab are about as
frequent as healthy leaves, multiple_diseases is rare. Rust shows as orange spots, scab as dark ones.

Metric: the mean over the four columns of the area under the ROC curve; higher is better.

Submission: submission.csv with exactly the header image_id,healthy,multiple_diseases,rust,scab and one row per row of
test.csv; the four numbers are probabilities.
"""
