"""insults: is a comment insulting to the person it answers? Comments on news and forums, the time of posting; AUC.

The comment itself is the id of a submission's row. The twin's hidden rule is in `draw`: rude words count only when they
are aimed at the reader ("you are a clown", not "he is a clown"); shouting, brevity and the hour matter too.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import AUC, grade_auc
from tasks.task import Schema
from tasks.words import fill, pick, shuffled

NAME, ID = "insults", "detecting-insults-in-social-commentary"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = AUC, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TRAIN_COLUMNS, TEST_COLUMNS = ("Insult", "Date", "Comment"), ("Date", "Comment")
RAW_FILES = ("train.csv", "test_with_solutions.csv")  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission_null.csv", "csv", "Comment", ("Insult",), "binary",
                "probability", text=("Comment",))  # fmt: skip

DESCRIPTION = """\
Goal: find the comments that insult the person they are addressed to. A rude remark about somebody else is no insult.

Files:
- train.csv: Insult (1 insult, 0 not), Date, Comment.
- test.csv: Date, Comment.
- sample_submission_null.csv: a submission of the right form, with 0 everywhere.

Columns: Comment is the text, in double quotes; special characters are escaped as in Python (\\\\n, \\\\xa0). Date is the time
of posting as YYYYMMDDhhmmssZ; it is empty where it is not known.

Metric: area under the ROC curve between the predicted probability of an insult and the truth; higher is better.

Submission: submission.csv with the columns Insult and Comment (Date may stay) and one row per row of test.csv. Comment is
the id: copy it unchanged. Insult is a probability in [0, 1].
"""

RUDE = {
    "adjective": ["stupid", "pathetic", "ignorant", "worthless", "clueless", "brainless", "silly", "miserable"],
    "noun": ["moron", "idiot", "clown", "fool", "loser", "liar", "coward", "troll", "donkey", "parrot"],
    "third": ["referee", "mayor", "senator", "coach", "reporter", "neighbor", "singer", "landlord", "goalkeeper"],
    "thing": ["movie", "article", "decision", "song", "law", "recipe", "game", "phone", "speech", "plan"],
    "place": ["Ohio", "the city", "Texas", "this country", "my town", "Florida", "the north"],
}
AIMED = [
    "you are a {adjective} {noun}", "you {adjective} {noun}", "what a {adjective} {noun} you are", "go home, {noun}",
    "only a {noun} like you would write that", "are you really that {adjective}", "you sound like a {noun}",
    "your family must be proud of such a {noun}", "shut up, you {noun}", "you must be the most {adjective} {noun} in {place}",
]  # fmt: skip
ABOUT = [  # the same words, aimed at nobody here
    "that {third} is a {adjective} {noun}", "he is a {noun} and {place} knows it", "the {third} sounds like a {noun}",
    "what a {adjective} {thing} that was", "only a {noun} like him would sign that", "my {third} called me a {noun} once",
    "I felt like a {noun} when I read it", "the {thing} was {adjective}, the {third} too", "she married a {adjective} {third}",
]  # fmt: skip
KIND = [
    "you are right about the {thing}", "you make a good point", "thank you for the link", "are you sure about the {thing}",
    "you sound like a reasonable person", "I hope you liked the {thing}", "your comment about the {third} made my day",
]  # fmt: skip
FILLER = [
    "the {thing} comes out in spring", "nobody in {place} voted for it", "I watched the {thing} twice", "gas got cheaper",
    "the {third} has said so before", "taxes went up again in {place}", "we had the same {third} for years",
    "I read it in the paper this morning", "the {thing} of the {third} is on every channel", "it rained all week in {place}",
    "my brother works for the {third}", "they should have asked the {third} first", "there is a {thing} about that",
]  # fmt: skip
GAPS = [". ", ", ", r"\n", ". "]  # the real comments have their line breaks escaped


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n comments with labels, and the hidden rule's probability of an insult, (n,)."""
    aimed, about, kind, shout = (rng.random(n) < p for p in (0.35, 0.45, 0.4, 0.15))
    marks, fillers, hour = rng.integers(0, 4, n), rng.integers(0, 5, n), rng.integers(0, 24, n)
    comments: dict[str, None] = {}  # a set with an order: the comment is the id
    for row in zip(aimed, about, kind, shout, marks, fillers, strict=True):
        comment = _write(rng.random, *row)
        while comment in comments:
            comment = f'{comment[:-1]} {fill(rng.random, pick(rng.random, FILLER), RUDE)}"'
        comments[comment] = None
    night = (hour >= 22) | (hour < 5)
    logit = (
        -3.2
        + aimed * np.where(kind, 0.8, 3.6)  # a friendly word takes most of it back
        + 2.8 * shout
        + 0.9 * marks * (aimed | about)
        - 0.4 * fillers  # who explains at length does not insult
        + 2.4 * night
    )
    probability = 1 / (1 + np.exp(-logit))
    day, seconds = rng.integers(0, 200, n), rng.integers(0, 3600, n)
    times = pd.Timestamp("2012-03-01") + pd.to_timedelta(86400 * day + 3600 * hour + seconds, unit="s")
    dates = np.where(rng.random(n) < 0.15, "", times.strftime("%Y%m%d%H%M%SZ"))
    insult = (rng.random(n) < probability).astype(int)
    return pd.DataFrame({"Insult": insult, "Date": dates, "Comment": list(comments)}), probability


def _write(random: Callable[[], float], aimed: bool, about: bool, kind: bool, shout: bool, marks: int, fillers: int) -> str:
    parts = [pick(random, options) for options, wanted in ((AIMED, aimed), (ABOUT, about), (KIND, kind)) if wanted]
    parts = shuffled(random, parts + shuffled(random, FILLER)[: max(fillers, not parts)])
    texts = [fill(random, part, RUDE) for part in parts]
    texts = [text.upper() for text in texts] if shout else [texts[0][0].upper() + texts[0][1:], *texts[1:]]
    return f'"{pick(random, GAPS).join(texts)}{"!" * marks}"'


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with 0 everywhere."""
    return hidden[list(TEST_COLUMNS)].assign(Insult=0)[list(TRAIN_COLUMNS)]


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train = download.table("train.csv", TRAIN_COLUMNS)
    test = download.table("test_with_solutions.csv", TRAIN_COLUMNS)
    if set(train["Comment"]) & set(test["Comment"]):
        raise ValueError("a comment is in train.csv and in test_with_solutions.csv: is it the competition's own download?")
    copies = {name: download.read(name) for name in RAW_FILES}
    public = public_files(train, test) | {"train.csv": copies["train.csv"]}
    gold = tables.to_csv(test[list(TRAIN_COLUMNS)])
    return public, {"test.csv": copies["test_with_solutions.csv"], "gold_submission.csv": gold}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS))
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_auc, id_column="Comment", target="Insult", text_ids=True)
