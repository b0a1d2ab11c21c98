"""The twins' ladders: on hidden rows a constant < a simple linear model < a tuned model < the hidden rule, for every task.

The models know the descriptions, not the rules. Scores are those of the tasks' own graders. (test_tasks.py has the ladder
of random-pizza.)
"""

from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from pipelines import LADDERS
from tasks import find_task, tables
from tasks.task import twin_generator

DRAWS = 3


def draw(module: ModuleType, salt: bytes) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Return the train rows of a twin, its hidden rows (both splits), and the rule's predictions for these."""
    rng, rows = twin_generator(module.NAME, 0, salt), module.TRAIN_ROWS
    if module.NAME == "leaf-classification":
        species = np.concatenate([rng.permutation(np.resize(np.arange(99), n)) for n in (rows, 495)])
        table, rule = module.draw(rng, species)
    else:
        table, rule = module.draw(rng, rows + 2 * module.HIDDEN_ROWS)
    ids = table.assign(**{module.SCHEMA.id_column: np.arange(len(table))}) if module.SCHEMA.image_files else table
    return table[:rows], ids[rows:].reset_index(drop=True), rule[rows:]


def score(module: ModuleType, hidden: pd.DataFrame, predictions: np.ndarray) -> float:
    """Return the grader's score of predictions; a constant has no correlation, which counts as 0."""
    if module.METRIC.name == "pearson" and np.ptp(predictions) == 0:
        return 0.0
    columns = dict(zip(module.SCHEMA.target_columns, np.asarray(predictions).reshape(len(hidden), -1).T, strict=True))
    table = pd.DataFrame({module.SCHEMA.id_column: hidden[module.SCHEMA.id_column], **columns})
    return module.grade(tables.to_csv(table), module.answers(hidden))


NAMES = [name for name in LADDERS if name not in ("hello-world", "random-pizza")]


def measure(name: str, draws: int = DRAWS) -> np.ndarray:
    """Return the scores of constant, linear, tuned and rule, (draws, 4)."""
    module = find_task(name)
    rows = []
    for i in range(draws):
        train, hidden, rule = draw(module, bytes([i]))
        rows.append([score(module, hidden, p) for p in (*LADDERS[name](train, hidden, module.SCHEMA), rule)])
    return np.array(rows)


@pytest.mark.parametrize("name", NAMES)
def test_better_engineering_scores_better(name):
    ladder = measure(name) * (1 if find_task(name).METRIC.higher_is_better else -1)  # (draws, 4)
    gaps = np.diff(ladder, axis=1)  # (draws, 3)
    scatter = ladder.std(axis=0, ddof=1)  # of each rung from draw to draw, (4,)
    assert (gaps > 0).all(), ladder
    assert (gaps.mean(axis=0) > np.maximum(scatter[:-1], scatter[1:])).all(), ladder
