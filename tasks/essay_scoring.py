"""essay-scoring: the grade of a pupil's essay, 1 to 6, as teachers give it; quadratic weighted kappa.

The twin's hidden rule is in `draw`: length counts with diminishing returns, spelling errors cost more in long essays,
paragraphs and linking words help only together.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import KAPPA, grade_kappa
from tasks.task import Schema
from tasks.words import fill, hex_ids, pick

NAME, ID = "essay-scoring", "learning-agency-lab-automated-essay-scoring-2"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = KAPPA, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("essay_id", "full_text", "score"), ("essay_id", "full_text")
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

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

CUTS = (-3.3, -1.6, 0.2, 1.8, 3.2)  # quality at which the next grade begins
SLOTS = {
    "topic": ["electric cars", "school uniforms", "the electoral college", "a trip to Venus", "homework in summer",
              "working from home", "cell phones in class", "driverless cars"],
    "who": ["people", "students", "many citizens", "my friends", "the author", "scientists", "drivers", "parents"],
    "plain": ["good", "bad", "nice", "big", "hard", "fun", "new", "important"],
    "rich": ["beneficial", "detrimental", "controversial", "indispensable", "questionable", "remarkable", "inevitable"],
    "verb": ["think about", "talk about", "want", "need", "like", "know", "use", "try"],
    "strong": ["advocate", "criticize", "emphasize", "reconsider", "acknowledge", "question"],
    "reason": ["it saves money", "it takes time", "it helps the environment", "nobody asked them", "the rules are unclear",
               "it makes life easier", "it is a risk for everyone", "the evidence says so"],
}  # fmt: skip
PLAIN = [
    "{who} {verb} {topic} because {reason}", "I think {topic} is {plain}", "{topic} is {plain} and {plain} for {who}",
    "{who} say that {reason}", "it is {plain} when {who} {verb} {topic}", "some {who} do not {verb} {topic} at all",
]  # fmt: skip
RICH = [
    "{who} {strong} {topic}, although {reason}", "the {rich} consequences of {topic} deserve attention, since {reason}",
    "it is {rich} that {who} {strong} {topic}", "whether {topic} is {rich} or {rich} depends on how {who} {verb} it",
]  # fmt: skip
LINKS = ["however,", "for example,", "in addition,", "therefore,", "in conclusion,", "on the other hand,"]


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n essays with grades, and the hidden rule's grade of each, (n,)."""
    paragraphs, length = rng.integers(1, 6, n), np.exp(rng.uniform(1.1, 3.3, n))  # length in sentences
    errors, rich = 0.14 * rng.random(n) ** 2, rng.random(n)  # share of misspelt words, of elaborate sentences
    linked = np.where(rng.random(n) < 0.5, rng.uniform(0.2, 0.6, n), 0.0)  # share of sentences with a linking word
    texts = [_write(rng.random, *row) for row in zip(paragraphs, length, errors, rich, linked, strict=True)]
    words = np.array([len(text.split()) for text in texts])
    quality = (
        2.2 * np.minimum(np.log(words / 110), 0.7)
        - 22 * (errors - 0.04) * (0.4 + np.minimum(words / 200, 1.2))  # in a long essay there are many of them
        + 1.5 * (rich - 0.5)
        + np.where((linked > 0) & (paragraphs >= 3), 1.2, -0.3)
        - 0.8 * ((words > 150) & (paragraphs == 1))
    )
    noisy = quality + 0.8 * rng.standard_normal(n)
    table = {"essay_id": hex_ids(rng, n, 7), "full_text": texts, "score": 1 + np.searchsorted(CUTS, noisy)}
    return pd.DataFrame(table), 1 + np.searchsorted(CUTS, quality)


def _write(random: Callable[[], float], paragraphs: int, length: float, errors: float, rich: float, linked: float) -> str:
    topic = pick(random, SLOTS["topic"])
    sentences = []
    for _ in range(max(int(length), paragraphs)):
        sentence = fill(random, pick(random, RICH if random() < rich else PLAIN), SLOTS | {"topic": [topic]})
        if random() < linked:
            sentence = f"{pick(random, LINKS)} {sentence}"
        sentences.append(" ".join(_misspell(random, word) if random() < errors else word for word in sentence.split()))
    written = [s[0].upper() + s[1:] + "." for s in sentences]
    return "\n\n".join(" ".join(written[i::paragraphs]) for i in range(paragraphs))


def _misspell(random: Callable[[], float], word: str) -> str:
    """Swap two letters of a word, or double one."""
    at = int(random() * (len(word) - 1))
    return word[:at] + (word[at + 1] + word[at] + word[at + 2 :] if random() < 0.6 and len(word) > 1 else word[at] + word[at:])


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with the random grades of MLE-bench."""
    return hidden[["essay_id"]].assign(score=np.random.RandomState(42).randint(1, 7, len(hidden)))


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"answers.csv": tables.to_csv(test)}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS), private="answers.csv")
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_kappa, id_column="essay_id", target="score")
