"""tabular-dec-2021: the forest cover type of a patch of land, one of seven, from 54 cartographic columns; accuracy.

The twin's hidden rule is in `draw`: bands of elevation whose limits shift with distance to water, slope, wilderness area
and soil; two types cover most of the land and two are very rare.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import ACCURACY, grade_accuracy
from tasks.task import Schema

NAME, ID = "tabular-dec-2021", "tabular-playground-series-dec-2021"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = ACCURACY, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
MEASURES = ("Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
            "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
            "Horizontal_Distance_To_Fire_Points")  # fmt: skip
AREAS = tuple(f"Wilderness_Area{i}" for i in range(1, 5))
SOILS = tuple(f"Soil_Type{i}" for i in range(1, 41))
FEATURES = (*MEASURES, *AREAS, *SOILS)
TRAIN_COLUMNS, TEST_COLUMNS = ("Id", *FEATURES, "Cover_Type"), ("Id", *FEATURES)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "Id", ("Cover_Type",), "multiclass", "label",
                numeric=FEATURES, classes=(1, 2, 3, 4, 5, 6, 7))  # fmt: skip

DESCRIPTION = """\
Goal: predict the kind of forest that covers a patch of land, from maps. The data are synthetic.

Files:
- train.csv: Id, the 54 columns below, Cover_Type.
- test.csv: the same columns without Cover_Type.
- sample_submission.csv: a submission of the right form, with 2 everywhere.

Columns: Elevation (m), Aspect and Slope (degrees), Horizontal_Distance_To_Hydrology, Vertical_Distance_To_Hydrology,
Horizontal_Distance_To_Roadways and Horizontal_Distance_To_Fire_Points (m), Hillshade_9am, Hillshade_Noon and
Hillshade_3pm (0 to 255); Wilderness_Area1 to 4 and Soil_Type1 to 40 are 0 or 1. Cover_Type is 1 to 7; types 1 and 2 are
frequent, 4 and 5 very rare.

Metric: accuracy, the share of rows whose type is predicted correctly; higher is better.

Submission: submission.csv with the header Id,Cover_Type and one row per row of test.csv; Cover_Type is a whole number.
"""


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n patches of land with cover types, and the hidden rule's type of each, (n,)."""
    elevation = np.round(np.clip(2890 + 260 * rng.standard_normal(n), 1800, 3900)).astype(int)
    aspect, slope = rng.integers(0, 360, n), np.round(np.abs(4 + 12 * rng.standard_normal(n))).astype(int)
    water = np.round(900 * rng.random(n) ** 2).astype(int)
    rise = np.round(water * (0.18 + 0.25 * rng.standard_normal(n))).astype(int)
    roads, fires = (np.round(6000 * rng.random(n) ** 1.5).astype(int) for _ in range(2))
    radians = np.deg2rad(aspect)
    shades = [
        np.clip(np.round(base + gain * np.cos(radians - angle) * slope / 20 + 8 * rng.standard_normal(n)), 0, 254).astype(int)
        for base, gain, angle in ((212, 35, 1.6), (223, 12, 3.1), (142, -38, 1.6))
    ]
    measures = (elevation, aspect, slope, water, rise, roads, *shades, fires)
    area = np.clip(np.floor((3300 - elevation) / 350 + 2.2 * rng.random(n)), 0, 3).astype(int)
    soil = np.clip(np.floor((elevation - 2100) / 42 + 9 * rng.standard_normal(n)), 0, 39).astype(int)
    rule = cover_type(elevation, aspect, slope, water, roads, area, soil)
    chance = rng.random(n)
    noisy = np.where(chance < 0.08, np.where(rule == 1, 2, 1), rule)  # mistaken for one of the two frequent types
    ones = [(kind == i).astype(int) for kind, count in ((area, 4), (soil, 40)) for i in range(count)]
    columns = (np.arange(n), *measures, *ones, noisy)
    return pd.DataFrame(dict(zip(TRAIN_COLUMNS, columns, strict=True))), rule


def cover_type(elevation, aspect, slope, water, roads, area, soil) -> np.ndarray:
    """Return the hidden rule's type, 1 to 7: bands of an elevation that is shifted by everything else; all are (n,)."""
    north = (aspect < 90) | (aspect > 270)
    stony = soil % 5 == 2
    height = elevation - 0.25 * water + np.where(north, 6.0, -4.0) * slope + 110 * (area == 1) - 110 * stony
    swap = (roads > 3300) & (area != 2)  # far from roads the two frequent types change places in the middle band
    types = np.select(
        [height < 2330, height < 2530, height < 2820, height < 3060, height < 3300],
        [np.where(water < 60, 4, 3), np.where(stony | (slope > 18), 6, 3), 2, np.where(swap, 1, 2), 1],
        default=7,
    )
    return np.where((types == 2) & (area == 2) & (roads < 250), 5, types)


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with the most frequent type everywhere."""
    return hidden[["Id"]].assign(Cover_Type=2)


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"test.csv": tables.to_csv(test)}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_accuracy, id_column="Id", target="Cover_Type")
