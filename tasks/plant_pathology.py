"""plant-pathology: is an apple leaf healthy, has it rust, scab or several diseases? Photographs; mean column AUC.

The twin's hidden rule is in `draw`: the number and colour of the spots on the leaf decide; light, colour cast, position of
the leaf and dirt on the ground beside it do not. Both diseases together are rare.
"""

import io
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from tasks import raw, tables
from tasks.grading import COLUMN_AUC, grade_column_auc
from tasks.task import Schema
from tasks.words import draw_classes

NAME, ID = "plant-pathology", "plant-pathology-2020-fgvc7"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = COLUMN_AUC, 60.0, 150, 200
DATA = "twin"  # what make_twin returns
STATES = ("healthy", "multiple_diseases", "rust", "scab")
TRAIN_COLUMNS, TEST_COLUMNS = ("image_id", *STATES), ("image_id",)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

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
SIZE = 48  # of an image, pixels; the real ones are 2048 × 1365
SHARES = (0.28, 0.08, 0.32, 0.32)  # of the states
RUST, SCAB = (205, 120, 35), (70, 62, 38)  # colours of the spots


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n leaves with states and images, and the hidden rule's probabilities of the four states, (n, 4)."""
    state = draw_classes(rng, np.tile(SHARES, (n, 1)))
    noisy = np.where(rng.random(n) < 0.06, rng.integers(0, 4, n), state)  # experts err
    images = [_photograph(rng, rust=s in (1, 2), scab=s in (1, 3)) for s in state]
    table = pd.DataFrame({"image_id": "", **{name: (noisy == i).astype(int) for i, name in enumerate(STATES)}}, index=range(n))
    return table.assign(**{tables.FILE: images}), 0.94 * np.eye(4)[state] + 0.015


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels. Ids are Train_0, Train_1, ... and Test_0, Test_1, ..."""
    table, _ = draw(rng, rows + 2 * HIDDEN_ROWS)
    table["image_id"] = [f"Train_{i}" for i in range(rows)] + [f"Test_{i}" for i in range(2 * HIDDEN_ROWS)]
    return tables.split_twin(table, rows, HIDDEN_ROWS)


def _photograph(rng: np.random.Generator, rust: bool, scab: bool) -> bytes:
    """Return a JPEG of a leaf on the ground: its size, place and light vary, and some spots lie beside it."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5  # (SIZE, SIZE)
    angle, centre = 3.14159 * rng.random(), 0.16 * rng.random(2) - 0.08
    along = (x - centre[0]) * np.cos(angle) + (y - centre[1]) * np.sin(angle)
    across = (y - centre[1]) * np.cos(angle) - (x - centre[0]) * np.sin(angle)
    leaf = (along / rng.uniform(0.36, 0.48)) ** 2 + (across / rng.uniform(0.2, 0.3)) ** 2 < 1
    ground = np.array([(120, 95, 60), (90, 100, 80), (150, 140, 120)][int(rng.integers(3))])
    green = np.array((75, 125, 50)) + rng.integers(-18, 19, 3)
    image = np.where(leaf[..., None], green, ground) + 12.0 * rng.standard_normal((SIZE, SIZE, 1))  # (SIZE, SIZE, 3)
    image += np.where(leaf & (np.abs(across) < 0.015), 25, 0)[..., None]  # the midrib
    for colour, present in ((RUST, rust), (SCAB, scab)):
        on_leaf = rng.integers(4, 10) if present else rng.integers(0, 2)  # a healthy leaf may have a speck
        for where, count in ((leaf, on_leaf), (~leaf, rng.integers(0, 8))):
            _add_spots(rng, image, where, colour, count)
    light = rng.uniform(0.7, 1.25) * (1 + rng.uniform(-0.5, 0.5) * x)
    image = image * light[..., None] * rng.uniform(0.9, 1.1, 3)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(np.round(image), 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _add_spots(rng: np.random.Generator, image: np.ndarray, where: np.ndarray, colour: tuple, count: int) -> None:
    """Paint `count` round spots of 1 to 3 pixels' radius, each centred on a pixel where `where` is true."""
    rows, columns = np.nonzero(where)
    y, x = np.ogrid[:SIZE, :SIZE]
    for i in rng.integers(0, len(rows), count):
        spot = (y - rows[i]) ** 2 + (x - columns[i]) ** 2 < rng.uniform(1, 6)
        image[spot & where] = np.array(colour) + rng.integers(-25, 26, 3)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with 0.25 everywhere."""
    return hidden[["image_id"]].assign(**dict.fromkeys(STATES, 0.25))


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download, images under new names.

    Raises ValueError for a table of another form, FileNotFoundError for missing images.
    """
    table = download.table("train.csv", TRAIN_COLUMNS)
    table[tables.FILE] = download.files(f"images/{name}.jpg" for name in table["image_id"])
    train, test = raw.split(table)
    for name, part in (("Train", train), ("Test", test)):
        part["image_id"] = [f"{name}_{i}" for i in range(len(part))]
    return public_files(train, test), {"test.csv": tables.to_csv(test[list(TRAIN_COLUMNS)])}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_column_auc, id_column="image_id", columns=STATES)
