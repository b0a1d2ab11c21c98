"""spooky-author: which of three authors of horror stories wrote a sentence? Log loss over three classes.

The twin's hidden rule is in `draw`: the three authors choose the same words with different frequencies, differ in
punctuation and in how long their sentences are; no word gives an author away.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import LOG_LOSS_3, grade_log_loss
from tasks.task import Schema
from tasks.words import draw_classes, softmax

NAME, ID = "spooky-author", "spooky-author-identification"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = LOG_LOSS_3, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
AUTHORS = ("EAP", "HPL", "MWS")
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "text", "author"), ("id", "text")
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

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
SHARES = (0.4, 0.29, 0.31)  # of the sentences
SLOTS = [  # what a sentence is made of, in this order: a choice, and what the author prefers in it is drawn per twin
    ["It was then that", "At length", "I remember how", "And yet", "In the evening", "Before long", "Presently", "Not once"],
    ["the old house", "my friend", "the stranger", "a shadow", "the sea", "his daughter", "the city", "a voice", "the night"],
    ["slowly", "surely", "strangely", "gently", "again", "almost", "never", "softly", "suddenly"],
    ["revealed", "covered", "remembered", "followed", "haunted", "called", "troubled", "seemed to hold", "approached"],
    ["the", "my", "a", "that", "this", "our", "every"],
    ["dark", "ancient", "dear", "singular", "unknown", "hideous", "mortal", "silent", "noble", "distant"],
    ["heart", "tomb", "dream", "stone", "mind", "hills", "sorrow", "door", "terror", "light"],
    ["; and", ", but", ", for", ", while", " -- and", ", as", "; yet", ", which"],
    ["I", "we", "he", "they", "she", "nobody", "it"],
    ["could", "might", "did", "would", "must", "should"],
    ["not", "scarcely", "still", "only", "perhaps", "indeed"],
    ["perceive", "endure", "forget", "explain", "behold", "escape", "love", "name"],
    ["its", "the", "such", "any", "what"],
    ["meaning", "horror", "beauty", "silence", "origin", "power", "misery", "design"],
    [".", ".", ".", "!", "?", "..."],
]  # fmt: skip
OPTIONAL = ((1, 2), (7, 14))  # half of the sentences lack these ranges of slots


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n sentences with authors, and the hidden rule's probabilities of the three authors, (n, 3)."""
    author = draw_classes(rng, np.tile(SHARES, (n, 1)))
    taste = [softmax(0.85 * rng.standard_normal((3, len(options)))) for options in SLOTS]  # (3, options) each
    keeps = 0.2 + 0.6 * rng.random((3, len(OPTIONAL)))  # an author's probability to keep an optional range
    kept = rng.random((n, len(OPTIONAL))) < keeps[author]
    chosen = np.column_stack([draw_classes(rng, table[author]) for table in taste])  # (n, slots)
    used = np.ones(chosen.shape, dtype=bool)
    for part, (start, end) in enumerate(OPTIONAL):
        used[:, start:end] = kept[:, part : part + 1]
    evidence = sum(np.log(table.T[chosen[:, i]]) * used[:, i : i + 1] for i, table in enumerate(taste))  # (n, 3)
    evidence += np.where(kept[:, None], np.log(keeps), np.log(1 - keeps)).sum(axis=2) + np.log(SHARES)
    texts = [_join(*row) for row in zip(chosen, used, strict=True)]
    ids = [f"id{number:05}" for number in rng.permutation(max(30_000, n))[:n]]
    return pd.DataFrame({"id": ids, "text": texts, "author": np.array(AUTHORS)[author]}), softmax(evidence)


def _join(chosen: np.ndarray, used: np.ndarray) -> str:
    words = [SLOTS[i][chosen[i]] for i in range(len(SLOTS)) if used[i]]
    return " ".join(words[:-1]).replace(" ;", ";").replace(" ,", ",").replace("  ", " ") + words[-1]


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with the frequencies of the authors in the real data."""
    return hidden[["id"]].assign(EAP=0.403493538995863, HPL=0.287808366106543, MWS=0.308698094897594)


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"test.csv": tables.to_csv(answers(test))}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_log_loss, id_column="id", classes=AUTHORS, exact=True, id_first=True)
