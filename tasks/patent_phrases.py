"""patent-phrases: how similar are two phrases from patents, in the light of a field of technology? Pearson correlation.

The twin's hidden rule is in `draw`: shared words, synonyms and broader terms count, and a word that has two meanings
only counts in the field where the two phrases mean the same.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import PEARSON, grade_pearson
from tasks.task import Schema
from tasks.words import draw_classes, hex_ids, pick, shuffled

NAME, ID = "patent-phrases", "us-patent-phrase-to-phrase-matching"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = PEARSON, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "anchor", "target", "context", "score"), ("id", "anchor", "target", "context")
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

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

HEADS = {  # section of the classification -> sets of nouns: two synonyms, a broader term
    "A": [("razor", "shaver", "cutting tool"), ("garment", "clothing", "textile"), ("chair", "seat", "furniture"),
          ("cell", "microbe", "organism"), ("bottle", "flask", "container")],
    "B": [("gripper", "clamp", "holding device"), ("wheel", "roller", "rotating part"), ("nozzle", "jet", "outlet"),
          ("press", "stamp", "forming machine"), ("plate", "panel", "flat element")],
    "C": [("polymer", "resin", "compound"), ("solvent", "thinner", "liquid"), ("enzyme", "catalyst", "protein"),
          ("alloy", "steel", "metal"), ("plate", "culture dish", "laboratory vessel")],
    "G": [("sensor", "detector", "instrument"), ("display", "screen", "output device"), ("lens", "objective", "optical part"),
          ("memory", "storage", "computer part"), ("clock", "timer", "counter")],
    "H": [("antenna", "aerial", "radiator"), ("cell", "battery", "power source"), ("conductor", "wire", "line"),
          ("switch", "breaker", "circuit element"), ("transistor", "semiconductor", "component")],
}  # fmt: skip
MODIFIERS = [
    ("portable", "mobile"), ("flexible", "bendable"), ("circular", "round"), ("heated", "warmed"), ("layered", "laminated"),
    ("hollow", "tubular"), ("rotary", "rotating"), ("sealed", "airtight"),
]  # fmt: skip
KINDS = {"same": 1.0, "synonym": 0.75, "broader": 0.5, "head": 0.5, "field": 0.25, "other": 0.0, "decoy": 0.0}
SHARES = (0.05, 0.15, 0.13, 0.22, 0.2, 0.12, 0.13)  # of the kinds of pairs


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n pairs of phrases with scores, and the hidden rule's score of each, (n,)."""
    section, head = rng.integers(0, len(HEADS), n), rng.integers(0, 5, n)
    values, taste = np.array(list(KINDS.values())), 2 * rng.standard_normal((len(HEADS), 5))
    weights = SHARES * np.exp(taste[section, head][:, None] * values)  # some anchors were given better targets
    kinds = draw_classes(rng, weights / weights.sum(axis=1, keepdims=True))
    rule = values[kinds]
    slip = np.where(rng.random(n) < 0.15, 0.25 * np.sign(rng.random(n) - 0.5), 0.0)  # raters differ by a step
    score = np.clip(rule + slip, 0, 1)
    anchors, targets, contexts = zip(*(_write(rng.random, *row) for row in zip(section, head, kinds, strict=True)), strict=True)
    columns = (hex_ids(rng, n, 16), anchors, targets, contexts, score)
    return pd.DataFrame(dict(zip(TRAIN_COLUMNS, columns, strict=True))), rule


def _write(random: Callable[[], float], section: int, head: int, kind: int) -> tuple[str, str, str]:
    """Return anchor, target and context of a pair; section, head and kind are numbers in HEADS and KINDS."""
    section, kind = list(HEADS)[section], list(KINDS)[kind]
    head, other = HEADS[section][head], pick(random, HEADS[section][:head] + HEADS[section][head + 1 :])
    modifier, changed = shuffled(random, MODIFIERS)[:2]
    word, name = pick(random, modifier), head[0] if random() < 0.6 else head[1]
    synonym = head[1] if name == head[0] else head[0]
    twin_modifier = modifier[1] if word == modifier[0] else modifier[0]
    elsewhere = pick(random, HEADS[pick(random, [s for s in HEADS if s != section])])
    targets = {
        "same": [f"{word} {name}s", f"{name}, {word}"],
        "synonym": [f"{word} {synonym}", f"{twin_modifier} {name}", f"{twin_modifier} {synonym}"],
        "broader": [f"{word} {head[2]}", head[2]],
        "head": [f"{changed[0]} {name}", f"{changed[1]} {synonym}", name],
        "field": [f"{word} {other[0]}", f"{changed[0]} {other[1]}", other[2]],
        "other": [f"{changed[0]} {elsewhere[0]}", elsewhere[1]],
        "decoy": [f"{word} {elsewhere[0]}", f"{word} {elsewhere[1]}", f"{word} {elsewhere[2]}"],  # shared, but not what counts
    }
    return f"{word} {name}", pick(random, targets[kind]), f"{section}{10 + int(random() * 6)}"


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a submission, with MLE-bench's 0 everywhere, which has no correlation."""
    return hidden[["id"]].assign(score=0)


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"test.csv": tables.to_csv(test)}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_pearson, id_column="id", target="score")
