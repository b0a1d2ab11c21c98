"""random-pizza: will a stranger send a pizza? Requests posted on Reddit, as text and metadata; AUC.

The twin invents requests in the real format. Its hidden rule is in `hidden_probability`: text and metadata both count,
through interactions, thresholds and the hour of the day, so that engineered features beat raw columns.
"""

import io
import json
import logging
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import pizza_text, raw, tables
from tasks.grading import AUC, grade_auc
from tasks.task import Schema

NAME, ID = "random-pizza", "random-acts-of-pizza"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = AUC, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
TARGET = "requester_received_pizza"
TEXT = ("request_title", "request_text_edit_aware")
COUNTS = (  # each exists as <name>_at_request, and in train also as <name>_at_retrieval
    "requester_account_age_in_days",
    "requester_days_since_first_post_on_raop",
    "requester_number_of_comments",
    "requester_number_of_comments_in_raop",
    "requester_number_of_posts",
    "requester_number_of_posts_on_raop",
    "requester_upvotes_minus_downvotes",
    "requester_upvotes_plus_downvotes",
)
NUMERIC = (*(f"{name}_at_request" for name in COUNTS), "requester_number_of_subreddits_at_request",
           "unix_timestamp_of_request", "unix_timestamp_of_request_utc")  # fmt: skip
TEST_FIELDS = tuple(sorted(("request_id", "requester_username", "requester_subreddits_at_request", *TEXT, *NUMERIC)))
FIRST_TIME, YEAR_S = 1_297_728_000, 31_557_600  # the first request, February 2011
LEAK = "giver_username_if_known"  # it names a giver only where a pizza was given
RAW_FILES = ("train.json", "test.json")  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.json", "test.json", "sampleSubmission.csv", "json", "request_id", (TARGET,), "binary",
                "probability", numeric=NUMERIC, text=TEXT)  # fmt: skip

DESCRIPTION = """\
Goal: predict whether a request for a free pizza, posted in the Reddit community Random Acts of Pizza, was successful.

Files:
- train.json: a list of records, one per request: all fields below and the label `requester_received_pizza` (boolean).
- test.json: a list of records with only the fields that are known at the moment of posting, marked (both).
- sampleSubmission.csv: a submission of the right form, with 0 everywhere.
Read them with pandas.read_json(path) or json.load.

Fields:
- request_id (both): the identifier of the request, a text such as t3_l25d7.
- request_title, request_text_edit_aware (both): title and text; later edits, which may thank the giver, are cut out.
- request_text (train only): the text as it stood when the data were collected, with later edits.
- requester_username (both); requester_user_flair (train only): null, or a badge got for taking part.
- requester_subreddits_at_request (both): the list of communities where the requester had posted;
  requester_number_of_subreddits_at_request (both): their number.
- requester_account_age_in_days_at_request, requester_days_since_first_post_on_raop_at_request,
  requester_number_of_comments_at_request, requester_number_of_comments_in_raop_at_request,
  requester_number_of_posts_at_request, requester_number_of_posts_on_raop_at_request,
  requester_upvotes_minus_downvotes_at_request, requester_upvotes_plus_downvotes_at_request (both): numbers about the
  requester when the request was posted. Train has them a second time as *_at_retrieval, when the data were collected.
- unix_timestamp_of_request, unix_timestamp_of_request_utc (both): the time of posting in seconds.
- number_of_upvotes_of_request_at_retrieval, number_of_downvotes_of_request_at_retrieval,
  request_number_of_comments_at_retrieval, post_was_edited (train only): what became of the request.

Metric: area under the ROC curve between the predicted probability of success and the truth; higher is better.

Submission: submission.csv with the header request_id,requester_received_pizza and one row per record of test.json;
requester_received_pizza is a probability in [0, 1].
"""


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables of invented requests, with all fields and the label."""
    table, probability = draw_requests(rng, rows + 2 * HIDDEN_ROWS)
    received = rng.random(len(table)) < probability
    add_outcome(rng, table, received)
    table = table[sorted(table.columns)]
    return table[:rows], table[rows : rows + HIDDEN_ROWS], table[rows + HIDDEN_ROWS :]


def draw_requests(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n requests with the fields known when posting, and each one's probability of success, (n,)."""
    meta = _draw_requesters(rng, n)
    names = list(pizza_text.THEMES)
    themes = rng.random((n, len(names))) < [0.3, 0.3, 0.22, 0.28, 0.45, 0.3, 0.2, 0.15]  # (n, themes)
    evidence = rng.random(n) < 0.3
    fillers = np.floor(10 * rng.random(n) ** 1.7).astype(int)
    random = rng.random
    chosen = [[names[j] for j in np.flatnonzero(row)] for row in themes]
    texts = [pizza_text.write_request(random, *row) for row in zip(chosen, evidence, fillers, strict=True)]
    table = pd.DataFrame({name: pd.Series(values.tolist(), dtype=object) for name, values in meta.items()})
    table["request_title"], table["request_text_edit_aware"] = zip(*texts, strict=True)
    table["request_id"] = [f"t3_{number}" for number in _draw_ids(rng, n)]
    table["requester_username"] = [pizza_text.write_name(random) for _ in range(n)]
    counts = meta["requester_number_of_subreddits_at_request"]
    groups = [sorted(rng.permutation(pizza_text.SUBREDDITS)[:count].tolist()) for count in counts]
    table["requester_subreddits_at_request"] = groups
    words = np.array([len(text.split()) for _, text in texts])
    return table, hidden_probability(meta, dict(zip(names, themes.T, strict=True)), evidence, words)


def _draw_ids(rng: np.random.Generator, n: int) -> list[str]:
    ids: dict[str, None] = {}  # a set with an order
    while len(ids) < n:
        ids[np.base_repr(int(rng.integers(36**4, 36**5)), 36).lower()] = None
    return list(ids)


def _draw_requesters(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Draw the numeric fields, (n,) each. Age, activity and votes are correlated; most are new to the community."""
    age = np.where(rng.random(n) < 0.2, 0.0, np.round(2400 * rng.random(n) ** 3, 4))  # days
    activity = np.exp(1.3 * rng.standard_normal(n)) * np.sqrt(age)
    comments = np.floor(6 * activity * rng.random(n)).astype(int)
    posts = np.floor(activity * rng.random(n)).astype(int)
    plus = np.floor((comments + 3 * posts) * (1 + 4 * rng.random(n))).astype(int)
    minus = np.round(plus * (1 - 0.9 * rng.random(n))).astype(int)
    raop_posts = (rng.random(n) < 0.15) * rng.integers(1, 4, n) * (posts > 0)
    raop_comments = np.where(rng.random(n) < 0.25, np.floor(1 + 12 * rng.random(n) ** 3), 0).astype(int) * (age > 0)
    first = np.where(raop_posts + raop_comments > 0, np.round(age * rng.random(n), 4), 0.0)
    subreddits = np.minimum(np.floor(np.sqrt(comments + posts) * (0.5 + rng.random(n))), 60).astype(int)
    hour_counts = rng.integers(0, 22_000, n)  # hours since February 2011
    time = FIRST_TIME + 3600 * hour_counts + rng.integers(0, 3600, n)
    utc_shift = np.where(rng.random(n) < 0.6, 3600, 0)  # the two clocks differ in summer time
    values = (age, first, comments, raop_comments, posts, raop_posts, minus, plus, subreddits)
    fields = dict(zip(NUMERIC, values, strict=False))
    return fields | {"unix_timestamp_of_request": time + 0.0, "unix_timestamp_of_request_utc": time - utc_shift + 0.0}


def hidden_probability(
    meta: dict[str, np.ndarray], has: dict[str, np.ndarray], evidence: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """Return the hidden rule's probability of a pizza, (n,), from metadata, themes (bools), evidence and word count."""
    age = meta["requester_account_age_in_days_at_request"]
    plus = meta["requester_upvotes_plus_downvotes_at_request"]
    approval = meta["requester_upvotes_minus_downvotes_at_request"] / np.maximum(plus, 1)
    hour = meta["unix_timestamp_of_request_utc"] // 3600 % 24
    known = meta["requester_number_of_comments_in_raop_at_request"] > 0
    hardship = has["job"] | has["medical"]
    trusted = (age > 60) & (age < 900)  # brand-new accounts look like cheats, very old ones like people who should know
    logit = (
        -4.4
        + 1.6 * trusted
        + 2.1 * known
        + 2.2 * (approval - 0.55) * (plus > 20)
        + 0.3 * np.log1p(plus)
        - 0.9 * np.floor((meta["unix_timestamp_of_request"] - FIRST_TIME) / YEAR_S)  # givers got fewer every year
        + 1.4 * ((hour >= 16) & (hour < 23))
        + 1.3 * np.log((words + 5) / 60)
        + 1.3 * evidence * np.where(trusted, 0.3, 1.6)  # a photo makes up for a missing reputation
        + 1.1 * hardship * np.where(has["party"], -0.5, 1.0)
        + 1.2 * has["kids"]
        + 1.1 * has["forward"] * np.where(hardship | has["student"], 1.4, 0.5)
        + 0.3 * has["thanks"]
        - 1.3 * has["craving"]
        - 1.2 * has["party"]
    )
    return 1 / (1 + np.exp(-logit))


def add_outcome(rng: np.random.Generator, table: pd.DataFrame, received: np.ndarray) -> None:
    """Add the label and the fields known only afterwards; some of these give the label away, as in the real data."""
    n = len(table)
    edited = rng.random(n) < np.where(received, 0.4, 0.1)
    texts = table["request_text_edit_aware"]
    ending = np.where(received, " EDIT: Pizza received, thank you so much!", " EDIT: fixed a typo.")
    table["request_text"] = [text + end * bool(flag) for text, end, flag in zip(texts, ending, edited, strict=True)]
    for name in COUNTS:
        later = rng.integers(0, 400, n) + 100 * received
        values = table[f"{name}_at_request"].to_numpy() + later
        table[f"{name}_at_retrieval"] = pd.Series(values.tolist(), dtype=object)
    outcome = {
        TARGET: received,
        "post_was_edited": edited,
        "requester_user_flair": np.where(received & (rng.random(n) < 0.7), "shroom", None),
        "number_of_upvotes_of_request_at_retrieval": rng.integers(0, 8, n) + 2 * received,
        "number_of_downvotes_of_request_at_retrieval": rng.integers(0, 5, n),
        "request_number_of_comments_at_retrieval": rng.integers(0, 6, n) + 3 * received,
    }
    for name, values in outcome.items():
        table[name] = pd.Series(values.tolist(), dtype=object)


def read_real(prepared: Path, with_test: bool) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the public train table and, if asked for, the test table with its answers, from MLE-bench's files.

    Private answers are opened only if asked for. Raises FileNotFoundError for a missing file, ValueError for a bad one.
    """
    wanted = ["public/train.json", "public/test.json", *(["private/test.csv"] if with_test else [])]
    tables.require_layout(ID, prepared, wanted)
    train = _read_records(prepared / "public/train.json", (*TEST_FIELDS, TARGET))
    if not with_test:
        return train, None
    test = _read_records(prepared / "public/test.json", TEST_FIELDS)
    truth = tables.read_csv(prepared / "private/test.csv")
    tables.require_columns(truth, ("request_id", TARGET), prepared / "private/test.csv")
    truth = truth.set_index("request_id")[TARGET]
    if set(truth.index) != set(test["request_id"]):
        raise ValueError(f"{prepared}: the ids of public/test.json and private/test.csv differ; prepare the data again")
    return train, test.assign(**{TARGET: truth.loc[test["request_id"]].astype(bool).tolist()})


def _parse_records(content: bytes, where: object) -> list[dict]:
    try:
        records = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where} cannot be read as JSON: {error}") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{where} is not a list of records: is it the competition's own file?")
    return records


def _read_records(path: Path, fields: tuple[str, ...]) -> pd.DataFrame:
    table = pd.DataFrame(_parse_records(path.read_bytes(), path), dtype=object)
    absent = [field for field in fields if field not in table.columns]
    if absent:
        raise ValueError(f"{path} lacks the field {absent[0]!r}: is it the competition's own file?")
    if LEAK in table.columns:
        logging.getLogger("tasks").warning("%s: %s left out of what programs see, it leaks the label", path.name, LEAK)
        table = table.drop(columns=LEAK)
    return table


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes]:
    """Return the public files of a split by name; of `hidden` only the fields known when posting enter them."""
    sample = pd.DataFrame({"request_id": hidden["request_id"], TARGET: 0})
    return {
        "train.json": json.dumps(train.to_dict("records"), indent=4).encode(),
        "test.json": json.dumps(hidden[list(TEST_FIELDS)].to_dict("records"), indent=4).encode(),
        "sampleSubmission.csv": sample.to_csv(index=False, lineterminator="\n").encode(),
    }


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download: test has the share of rows that Kaggle's test had.

    Like MLE-bench it leaves giver_username_if_known in; read_real takes it out. Raises ValueError for other records.
    """
    train, kaggle_test = (_parse_records(download.read(name), f"{name} in {download.path}") for name in RAW_FILES)
    if not train or not kaggle_test or any(set(record) != set(train[0]) for record in train):
        raise ValueError(f"{download.path}: train.json or test.json is empty, or the records' fields differ")
    table, fields = pd.DataFrame(train, dtype=object), list(kaggle_test[0])
    tables.require_columns(table, (*TEST_FIELDS, *fields, TARGET), f"train.json in {download.path}")
    train, test = raw.split(table, len(kaggle_test) / (len(train) + len(kaggle_test)))
    sides = {"train.json": train, "test.json": test[fields]}
    public = {name: json.dumps(part.to_dict("records"), indent=4).encode() for name, part in sides.items()}
    public |= {name.replace(".json", ".zip"): _zip(name, content) for name, content in public.items()}
    public["sampleSubmission.csv"] = tables.to_csv(pd.DataFrame({"request_id": test["request_id"], TARGET: 0}))
    return public, {"test.csv": tables.to_csv(answers(test))}


def _zip(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), content)  # with a fixed date: the same bytes every time
    return buffer.getvalue()


def answers(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return the id and the label (0 or 1) of each hidden row."""
    return pd.DataFrame({"request_id": hidden["request_id"].tolist(), TARGET: hidden[TARGET].astype(int).tolist()})


def grade(submission: bytes, truth: pd.DataFrame) -> float:
    """Return the AUC. Raises InvalidSubmission."""
    return grade_auc(submission, truth, "request_id", TARGET)
