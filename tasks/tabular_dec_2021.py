"""tabular-dec-2021: the forest cover type of a patch of land, one of seven, from 54 cartographic columns; accuracy.

The twin's hidden rule is in `draw`: bands of elevation whose limits shift with distance to water, slope, wilderness area
and soil; two types cover most of the land and two are very rare.
"""

from tasks.grading import ACCURACY
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
