"""chatbot-arena: of two chatbots' answers, which one will the user prefer, or is it a tie? Log loss over three classes.

The twin's hidden rule is in `draw`: users like longer answers up to a point, lists, and words of their own question, dislike
refusals; what counts is the difference of the two answers, and ties come where it is small or both are bad.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from tasks import raw, tables
from tasks.grading import LOG_LOSS_3, grade_log_loss
from tasks.task import Schema
from tasks.words import draw_classes, fill, pick, softmax

NAME, ID = "chatbot-arena", "lmsys-chatbot-arena"  # ID: the name in MLE-bench
METRIC, TIME_LIMIT_S, TRAIN_ROWS, HIDDEN_ROWS = LOG_LOSS_3, 60.0, 200, 400
DATA = "twin"  # what make_twin returns
WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")
TEXTS = ("prompt", "response_a", "response_b")
TRAIN_COLUMNS, TEST_COLUMNS = ("id", "model_a", "model_b", *TEXTS, *WINNERS), ("id", *TEXTS)
RAW_FILES = ("train.csv",)  # what `python -m tasks prepare` needs

SCHEMA = Schema("train.csv", "test.csv", "sample_submission.csv", "csv", "id", WINNERS, "multiclass", "probabilities",
                text=TEXTS, pair=("response_a", "response_b"), classes=WINNERS)  # fmt: skip

DESCRIPTION = """\
Goal: predict which of two answers a user preferred, in conversations with two anonymous chatbots.

Files:
- train.csv: id, model_a, model_b, prompt, response_a, response_b, winner_model_a, winner_model_b, winner_tie.
- test.csv: id, prompt, response_a, response_b.
- sample_submission.csv: a submission of the right form, with 1/3 everywhere.

Columns: id is a number without meaning; prompt, response_a and response_b are JSON lists of texts, one text a turn of the
conversation (json.loads reads them); model_a and model_b name the chatbots (train only). Of the three winner columns
exactly one is 1, the rest 0.

Metric: log loss over the three outcomes, the mean of -log of the probability given to the true one; lower is better.

Submission: submission.csv with the header id,winner_model_a,winner_model_b,winner_tie and one row per row of test.csv; the
three probabilities of a row are in [0, 1] and sum to 1 (to 6 decimals).
"""
SUBJECTS = {
    "sourdough bread": ["starter", "flour", "crust", "oven"], "chess openings": ["pawn", "bishop", "centre", "gambit"],
    "python loops": ["range", "iterator", "index", "variable"], "the french revolution": ["king", "assembly", "paris", "taxes"],
    "house plants": ["soil", "light", "water", "roots"], "interest rates": ["inflation", "bank", "loans", "savings"],
    "marathon training": ["miles", "rest", "pace", "shoes"], "black holes": ["gravity", "horizon", "mass", "stars"],
    "job interviews": ["questions", "resume", "salary", "manager"], "electric guitars": ["pickup", "amp", "strings", "tone"],
}  # fmt: skip
QUESTIONS = ["Explain {subject} to me.", "What should I know about {subject}?", "Give me a list of tips on {subject}",
             "List the steps to get started with {subject}.", "write a short story about {subject}"]  # fmt: skip
ON_TOPIC = ["The {detail} matters most for {subject}.", "With {subject}, begin with the {detail}.", "Good {detail} takes time.",
            "Most people overlook the {detail} when they think of {subject}.", "Keep an eye on the {detail}."]  # fmt: skip
OFF_TOPIC = ["There is much to consider here.", "It depends on your situation and your goals.", "What a great question!",
             "As always, opinions differ on this point.", "I hope this helps you on your way."]  # fmt: skip
REFUSAL = "I'm sorry, but as an AI language model I cannot help with that."
MODELS = ["gpt-4-0613", "claude-2.1", "llama-2-13b-chat", "vicuna-13b", "mixtral-8x7b-instruct-v0.1", "zephyr-7b-beta"]
TIE = -0.3  # logit of a tie between equal answers


def draw(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return n battles with outcomes, and the hidden rule's probabilities of a, b and tie, (n, 3)."""
    subjects, questions = rng.integers(0, len(SUBJECTS), n), rng.integers(0, len(QUESTIONS), n)
    asks_list = (questions == 2) | (questions == 3)
    drawn = [_draw_answers(rng, n) for _ in range(2)]
    values = np.column_stack([answer_value(answer, asks_list) for answer in drawn])  # (n, 2)
    difference = values[:, 0] - values[:, 1]
    tie = TIE - 0.5 * np.abs(difference) + 1.2 * (values.max(axis=1) < -0.5)
    probabilities = softmax(np.column_stack([0.8 * difference, -0.8 * difference, tie]))
    outcome = draw_classes(rng, probabilities)
    prompts = [
        json.dumps([QUESTIONS[q].replace("{subject}", list(SUBJECTS)[s])]) for q, s in zip(questions, subjects, strict=True)
    ]
    models = rng.integers(0, len(MODELS), (2, n))
    texts = [[_write(rng.random, *row) for row in zip(subjects, *answer.values(), strict=True)] for answer in drawn]
    ids = rng.permutation(1_000_000)[:n] * 4211 + 30_192
    columns = (ids, *np.array(MODELS)[models], prompts, *texts, *np.eye(3, dtype=int)[outcome].T)
    return pd.DataFrame(dict(zip(TRAIN_COLUMNS, columns, strict=True))), probabilities


def _draw_answers(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Draw what an answer is like, (n,) each: number of sentences, share on topic, form of a list, refusal."""
    return {
        "sentences": np.floor(np.exp(rng.uniform(0.7, 3.3, n))).astype(int),
        "on_topic": rng.random(n),
        "is_list": rng.random(n) < 0.3,
        "refuses": rng.random(n) < 0.12,
    }


def answer_value(answer: dict[str, np.ndarray], asks_list: np.ndarray) -> np.ndarray:
    """Return how much users like each answer, (n,)."""
    length = np.log(answer["sentences"] / 8)
    liked = 1.1 * np.minimum(length, 0.4) - 0.9 * np.maximum(length - 0.4, 0)  # too long is no better than too short
    value = liked + 2.6 * (answer["on_topic"] - 0.5) + answer["is_list"] * np.where(asks_list, 1.6, -0.5)
    return np.where(answer["refuses"], -2.8, value)


def _write(random: Callable[[], float], subject: int, sentences: int, on_topic: float, is_list: bool, refuses: bool) -> str:
    """Return an answer as a JSON list of one text."""
    name, details = list(SUBJECTS.items())[subject]
    if refuses:
        return json.dumps([REFUSAL])
    options = [ON_TOPIC if random() < on_topic else OFF_TOPIC for _ in range(sentences)]
    texts = [fill(random, pick(random, o), {"subject": [name], "detail": details}) for o in options]
    return json.dumps(["\n".join(f"{i}. {text}" for i, text in enumerate(texts, 1)) if is_list else " ".join(texts)])


def make_twin(rng: np.random.Generator, rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return train, reward and test tables, with labels."""
    return tables.split_twin(draw(rng, rows + 2 * HIDDEN_ROWS)[0], rows, HIDDEN_ROWS)


def sample_submission(hidden: pd.DataFrame) -> pd.DataFrame:
    """Return a submission of the right form, with 1/3 everywhere."""
    return hidden[["id"]].assign(**dict.fromkeys(WINNERS, 1 / 3))


def public_files(train: pd.DataFrame, hidden: pd.DataFrame) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; labels of `hidden` do not enter them."""
    return tables.public_files(SCHEMA, TEST_COLUMNS, train, hidden, sample_submission(hidden))


def prepare_raw(download: raw.Raw) -> tuple[raw.Files, raw.Files]:
    """Return MLE-bench's public and private files of a raw download. Raises ValueError for a table of another form."""
    train, test = raw.split(download.table("train.csv", TRAIN_COLUMNS))
    return public_files(train, test), {"answers.csv": tables.to_csv(test)}


read_real = partial(tables.read_real, ID, SCHEMA, (TRAIN_COLUMNS, TEST_COLUMNS), private="answers.csv")
answers = partial(tables.answers, SCHEMA)
grade = partial(grade_log_loss, id_column="id", classes=WINNERS)
