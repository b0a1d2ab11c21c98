"""tweet-sentiment: which words of a tweet carry its sentiment? A span of text to extract; mean word Jaccard.

The twin's hidden rule is in `draw`: neutral tweets are quoted whole; for the others the span is the phrase of that
sentiment, with its intensifier and what follows, and a tweet may hold phrases of both sentiments.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import JACCARD, grade_jaccard
from tasks.task import Schema
from tasks.words import draw_classes, fill, hex_ids, pick, shuffled

NAME, ID = "tweet-sentiment", "tweet-sentiment-extraction"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = JACCARD, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("textID", "text", "selected_text", "sentiment"), ("textID", "text", "sentiment")
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "textID", ("selected_text",), "span", "span",
                text=("text",), categorical=("sentiment",))  # fmt: skip

DESCRIPTION = """\
Goal: quote the part of a tweet that expresses its sentiment, which is given.

Files:
- train.csv: textID, text, selected_text, sentiment.
- test.csv: textID, text, sentiment.
- sample_submission.csv: a submission of the right form, with empty spans.

Columns: textID is a text such as cb774db0d1; text is the tweet; sentiment is positive, negative or neutral; selected_text
is the piece of text that an annotator chose: consecutive characters of it. For neutral tweets it is mostly all of it.

Metric: the mean over all tweets of the Jaccard similarity of the predicted and the true span as sets of lower-case words:
words in both / words in either; higher is better, 1 is perfect.

Submission: submission.csv with the header textID,selected_text and one row per row of test.csv.
"""

WORDS = {
    "positive": ["love", "great", "awesome", "happy", "fun", "sweet", "amazing", "thanks", "beautiful", "lucky", "excited"],
    "negative": ["hate", "terrible", "sad", "sick", "awful", "tired", "miss", "sorry", "bad", "broken", "lonely"],
}  # fmt: skip
WITH_OBJECT = ("love", "hate", "miss", "thanks")
BOOSTERS = ["so", "really", "very", "soo", "totally", "feeling"]
OBJECTS = ["it", "you all", "this song", "my dog", "that show", "my bed", "for this"]
NEUTRAL = [
    "just got home from {place}", "going to {place} {time}", "anyone here at {place}?", "i have to work {time}",
    "waiting for the bus to {place}", "my sister is at {place}", "when is the show {time}", "watching tv with @friend_{digit}",
    "on my way to {place}", "reading http://twitpic.com/{digit}x{digit}", "i think we leave {time}", "it is raining in {place}",
    "making dinner {time}", "do you know {place}", "lunch at {place} {time}", "still at the office",
]  # fmt: skip
SLOTS = {
    "place": ["school", "the gym", "london", "the mall", "austin", "my room", "church", "the beach", "work"],
    "time": ["tonight", "tomorrow", "at 9", "after class", "this weekend", "on monday", "in an hour"],
    "digit": list("123456789"),
}
SENTIMENTS = ("neutral", "positive", "negative")


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, list[str]]:
    """Return n tweets with the annotators' spans, and the hidden rule's span of each."""
    sentiment = draw_classes(rng, np.tile([0.4, 0.31, 0.29], (n, 1)))
    careless = rng.random(n)
    texts, spans, rule = [], [], []
    for kind, care in zip(sentiment, careless, strict=True):
        text, span = _write(rng.random, SENTIMENTS[kind])
        words = text.split()
        noisy = text if care < 0.06 else " ".join(words[len(words) // 2 :]) if care < 0.12 else span
        texts, spans, rule = [*texts, text], [*spans, noisy], [*rule, span]
    columns = (hex_ids(rng, n, 10), texts, spans, [SENTIMENTS[kind] for kind in sentiment])
    return pd.DataFrame(dict(zip(TRAIN_COLUMNS, columns, strict=True))), rule


def _write(random: Callable[[], float], sentiment: str) -> tuple[str, str]:
    """Return a tweet and the piece of it that carries the sentiment: all of a neutral one."""
    parts = [fill(random, part, SLOTS) for part in shuffled(random, NEUTRAL)[: 1 + int(3 * random())]]
    if sentiment == "neutral":
        return " ".join(parts), " ".join(parts)
    span = _phrase(random, sentiment)
    parts.append(span)
    if random() < 0.5:  # mixed feelings
        parts.append(_phrase(random, "negative" if sentiment == "positive" else "positive"))
    gap = pick(random, [" ", "... ", " ", ", "])
    return gap.join(shuffled(random, parts)), span


def _phrase(random: Callable[[], float], sentiment: str) -> str:
    """Return a word of the sentiment with a booster before it, its object and exclamation marks, where it has them."""
    word = pick(random, WORDS[sentiment])
    booster = [pick(random, BOOSTERS)] if random() < 0.5 else []
    objects = [pick(random, OBJECTS)] if word in WITH_OBJECT else []
    return " ".join([*booster, word, *objects]) + "!" * int(3 * random())


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with empty spans."""
    return hidden[["textID"]].assign(selected_text="")


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"test.csv": tables.to_csv(test)}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_jaccard, id_column="textID", target="selected_text")
