"""The graders of all twelve tasks: right scores, and for every kind of broken submission its named reason (case 35)."""

import io
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import cohen_kappa_score, log_loss, roc_auc_score

from tasks import GraderFault, InvalidSubmission, find_task, task_names
from tasks.grading import READ_AS_MISSING, grade_jaccard, word_jaccard

ROWS = 12
COMPETITIONS = [name for name in task_names() if find_task(name).ID]
EXACT = ("leaf-classification", "plant-pathology", "spooky-author")  # other columns are refused
LABEL, LOG_LOSS = ("essay-scoring", "tabular-dec-2021"), ("leaf-classification", "spooky-author", "chatbot-arena")
NUMBER_IDS = ("tabular-may-2022", "tabular-dec-2021", "leaf-classification", "transparent-conductors", "chatbot-arena")


def example(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return made-up answers of ROWS rows and valid predictions for them, neither perfect nor constant."""
    schema, rng = find_task(name).SCHEMA, np.random.default_rng(0)
    ids = 10 + 3 * np.arange(ROWS) if name in NUMBER_IDS else [f"row_{i}, \"x\"" for i in range(ROWS)]
    columns, k = schema.target_columns, len(schema.target_columns)
    if schema.prediction == "span":
        truth, guess = [[text] * ROWS for text in ("so happy now", "happy now!")]
    elif schema.prediction == "probabilities":
        truth = np.eye(k, dtype=int)[rng.permutation(np.resize(np.arange(k), ROWS))]
        guess = rng.dirichlet(np.ones(k), ROWS)
        guess = (guess + 2 * truth) / (guess + 2 * truth).sum(axis=1, keepdims=True)
    elif schema.prediction == "label":
        truth = np.resize(schema.classes, ROWS)
        guess = np.where(np.arange(ROWS) % 3 == 0, 2, truth)
    elif schema.prediction == "probability":
        truth, guess = np.resize([0, 1], ROWS), rng.random(ROWS)
    else:
        truth = rng.random((ROWS, k))
        guess = np.abs(truth + 0.1 * rng.standard_normal((ROWS, k)))
    frames = [pd.DataFrame(np.asarray(cells).reshape(ROWS, -1), columns=columns) for cells in (truth, guess)]
    for frame in frames:
        frame.insert(0, schema.id_column, ids)
    return frames[0], frames[1]


def grade(name: str, submission: pd.DataFrame | bytes, truth: pd.DataFrame) -> float:
    content = submission if isinstance(submission, bytes) else submission.to_csv(index=False).encode()
    return find_task(name).grade(content, truth)


def refused(name: str, submission: pd.DataFrame | bytes, truth: pd.DataFrame, reason: str) -> None:
    with pytest.raises(InvalidSubmission, match=reason):
        grade(name, submission, truth)


def with_cell(table: pd.DataFrame, value: object, row: int = 1) -> pd.DataFrame:
    """Return the table with another value in its first target column."""
    changed = table.astype({table.columns[1]: object})
    changed.iloc[row, 1] = value
    return changed


def expected_score(name: str, truth: pd.DataFrame, guess: pd.DataFrame) -> float:
    """Compute the metric once more, from its definition or from scikit-learn."""
    y, p = truth.iloc[:, 1:].to_numpy(), guess.iloc[:, 1:].to_numpy()
    metric = find_task(name).METRIC.name
    if metric in ("auc", "mean_column_auc"):
        return np.mean([roc_auc_score(a.astype(int), b) for a, b in zip(y.T, p.T, strict=True)])
    if metric == "log_loss":
        return log_loss(y, p.astype(float))
    if metric == "accuracy":
        return (y == p).mean()
    if metric == "quadratic_kappa":
        return cohen_kappa_score(y[:, 0], p[:, 0], weights="quadratic")
    if metric == "pearson":
        return pearsonr(y[:, 0], p[:, 0])[0]
    if metric == "mean_column_rmsle":
        return np.sqrt(((np.log1p(p) - np.log1p(y)) ** 2).mean(axis=0)).mean()
    return 1 / 4  # "so happy now" and "happy now!": one word of four in common


@pytest.mark.parametrize("name", COMPETITIONS)
def test_score_is_that_of_an_independent_computation(name):
    truth, guess = example(name)
    assert math.isclose(grade(name, guess, truth), expected_score(name, truth, guess), abs_tol=1e-12)
    assert math.isclose(grade(name, truth, truth), find_task(name).METRIC.best, abs_tol=1e-9)


@pytest.mark.parametrize("name", COMPETITIONS)
def test_order_of_rows_and_columns_and_the_dialect_do_not_matter(name):
    truth, guess = example(name)
    plain = guess.to_csv(index=False)
    score = grade(name, guess, truth)
    same = [
        guess.sample(frac=1, random_state=1),
        guess[[guess.columns[0], *guess.columns[:0:-1]]],  # targets in another order
        guess.astype(str).map(lambda cell: cell),
        b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode(),
        guess.to_csv(index=False, quoting=1).encode(),
        plain.rstrip("\n").encode(),
        guess.to_csv(index=True).encode().replace(b",", b"", 1),  # an index without a header cell
    ]
    if name not in EXACT:
        same += [guess.assign(extra="inf"), guess.reset_index(), guess[guess.columns[::-1]]]
    if name in NUMBER_IDS:
        same.append(guess.assign(**{guess.columns[0]: [f" 00{i}.0" for i in guess.iloc[:, 0]]}))
    for submission in same:
        assert grade(name, submission, truth) == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize("name", COMPETITIONS)
def test_broken_tables_are_refused_with_their_reason(name):
    truth, guess = example(name)
    id_column, target = guess.columns[:2]
    cases = [
        (b"", "empty"),
        (b" \r\n\n", "empty"),
        (guess[:0], "missing"),
        (guess.drop(columns=target), "is missing"),
        (guess.rename(columns={target: "prediction"}), "is missing|not asked for"),
        (guess.drop(columns=id_column), "is missing"),
        (guess[1:], "1 of 12 ids are missing"),
        (pd.concat([guess, guess[:1]]), "duplicate id"),
        (pd.concat([guess[1:], guess[1:2]]), "duplicate id"),
        (pd.concat([guess, guess[:1].assign(**{id_column: 999})]), "extra id"),
        (guess.assign(**{id_column: "x"}), "duplicate|extra|not a number"),
        (guess.to_csv(index=False).encode("utf-16"), "NUL|UTF-8"),
        (guess.to_csv(index=False).encode() + b"1,2,3" + b",4" * 99 + b"\n", "parsed|extra"),
    ]
    if name in EXACT:
        cases += [(guess.assign(extra=1), "'extra' is not asked for"), (guess.reset_index(), "'index' is not asked for")]
    for submission, reason in cases:
        refused(name, submission, truth, reason)


@pytest.mark.parametrize("name", [name for name in COMPETITIONS if name != "tweet-sentiment"])
def test_broken_cells_are_refused_with_their_reason(name):
    truth, guess = example(name)
    cases = {"": "missing value", "nan": "missing value", "NULL": "missing value", "inf": "infinite", "-inf": "infinite",
             "1e999": "infinite", "good": "'good', which is not a number", "1 2": "not a number", "0x1": "not a number",
             "True": "not a number", "[1]": "not a number"}  # fmt: skip
    for cell, reason in cases.items():
        refused(name, with_cell(guess, cell), truth, reason)


OUT_OF_RANGE = {  # what each grader says of a number that is out of range: a reason, or "" where it counts
    "insults": {1.0000000000000002: "outside", -1e-9: "outside"},
    "random-pizza": {1.5: "outside", -0.5: "outside"},
    "tabular-may-2022": {1.5: "outside", -0.5: "outside"},
    "essay-scoring": {7: "", 0: "", -1: "", 100: "", 2.5: "2.5, which is not a whole number", 3.0000000001: "not a whole"},
    "tabular-dec-2021": {8: "", 0: "", 2.5: "2.5, which is not a whole number"},
    "patent-phrases": {7.5: "", -3: ""},
    "plant-pathology": {-7: "", 100: ""},
    "transparent-conductors": {-1e-9: "outside", -0.5: "outside", 1e6: ""},
    "leaf-classification": {1.5: "outside", -0.5: "outside"},
    "spooky-author": {1.5: "outside", -0.5: "outside"},
    "chatbot-arena": {1.5: "outside", -0.5: "outside"},
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_numbers_out_of_range(name):
    truth, guess = example(name)
    for value, reason in OUT_OF_RANGE[name].items():
        if reason:
            refused(name, with_cell(guess, value), truth, reason)
        else:
            assert math.isfinite(grade(name, with_cell(guess, value), truth))


@pytest.mark.parametrize("name", LOG_LOSS)
def test_rows_of_probabilities_sum_to_1_within_the_tolerance_of_the_competition(name):
    truth, guess = example(name)
    classes = list(guess.columns[1:])
    for off, in_exact, in_arena in ((1e-7, True, True), (9e-6, True, False), (2e-5, False, False), (0.5, False, False)):
        shifted = guess.assign(**{classes[0]: guess[classes[0]] - off * (guess[classes[0]] > off)})
        shifted[classes] = shifted[classes] / shifted[classes].sum(axis=1).to_numpy()[:, None] * (1 - off)
        if in_exact if name in EXACT else in_arena:
            assert math.isfinite(grade(name, shifted, truth))
        else:
            refused(name, shifted, truth, "do not sum to 1")
    refused(name, guess.assign(**dict.fromkeys(classes, True)), truth, "not a number")
    wrong = guess.copy()
    wrong[classes] = np.roll(truth[classes].to_numpy(), 1, axis=1)
    assert grade(name, wrong, truth) == pytest.approx(36.0437, abs=1e-4)  # all wrong with certainty
    float32 = guess.copy()
    float32[classes] = guess[classes].to_numpy(np.float32)
    assert math.isfinite(grade(name, float32, truth))


@pytest.mark.parametrize("name", [name for name in OUT_OF_RANGE if name not in LOG_LOSS])
def test_spellings_of_numbers_that_only_python_reads(name):
    truth, guess = example(name)
    for cell in ("0_1", "1_0", "\uff11", "\xa01"):
        if name in ("plant-pathology", "transparent-conductors"):
            assert grade(name, with_cell(guess, cell), truth) == grade(name, with_cell(guess, float(cell)), truth)
        else:
            refused(name, with_cell(guess, cell), truth, "not a number")


def test_spooky_wants_the_id_first():
    truth, guess = example("spooky-author")
    refused("spooky-author", guess[guess.columns[::-1]], truth, "first column is not 'id'")


@pytest.mark.parametrize("name", LABEL)
def test_integral_floats_are_labels(name):
    truth, guess = example(name)
    floats = guess.astype({guess.columns[1]: float})
    mixed = with_cell(guess, "3e0" if guess.iloc[1, 1] == 3 else f"{guess.iloc[1, 1]}.000")
    assert grade(name, floats, truth) == grade(name, mixed, truth) == grade(name, guess, truth)


@pytest.mark.parametrize("name", ["insults", "random-pizza", "tabular-may-2022", "plant-pathology", "transparent-conductors"])
def test_a_column_of_booleans_is_1_and_0(name):
    truth, guess = example(name)
    columns = list(guess.columns[1:])
    booleans = guess.assign(**{c: np.arange(ROWS) % (i + 2) == 0 for i, c in enumerate(columns)})
    assert grade(name, booleans, truth) == grade(name, booleans.astype(dict.fromkeys(columns, int)), truth)


def test_a_constant_has_no_correlation_and_huge_numbers_do_not_crash():
    truth, guess = example("patent-phrases")
    refused("patent-phrases", guess.assign(score=0.5), truth, "all predictions are equal")
    for submission in (with_cell(guess, 1.7e308), guess.assign(score=[1e308, -1e308] * 6), guess.assign(score=1e300)):
        try:
            assert -1 <= grade("patent-phrases", submission, truth) <= 1
        except InvalidSubmission as error:
            assert "correlation" in str(error)


def test_comments_may_repeat_and_may_read_as_missing():
    comments = ["same", "NA", "same", "", "other", "null"]
    truth = pd.DataFrame({"Comment": comments, "Insult": [0, 1, 1, 0, 1, 0]})
    guess = pd.DataFrame({"Comment": comments, "Insult": [0.1, 0.9, 0.8, 0.2, 0.7, 0.3]})
    assert grade("insults", guess, truth) == 1.0
    through_pandas = pd.read_csv(io.StringIO(guess.to_csv(index=False)))  # NA and null become empty cells
    assert grade("insults", through_pandas, truth) == 1.0
    refused("insults", pd.concat([guess, guess[:1]]), truth, "duplicate id 'same'")
    refused("insults", guess[1:], truth, "1 of 6 ids are missing, such as 'same'")


def test_jaccard_of_words():
    assert word_jaccard("Good  good day", "GOOD") == 0.5
    assert word_jaccard("", " \t") == 1.0 and word_jaccard("", "x") == 0.0
    assert all(word_jaccard(span, "") == 1.0 for span in READ_AS_MISSING)
    truth = pd.DataFrame({"textID": ["a", "b"], "selected_text": ["so sad", ""]})
    assert grade_jaccard(b"textID,selected_text\nb,\na,sad\n", truth, "textID", "selected_text") == 0.75
    assert grade_jaccard(b'textID,selected_text\na\nb,""\n', truth, "textID", "selected_text") == 0.5  # a cell too few: empty


@pytest.mark.parametrize("name", [name for name in COMPETITIONS if name not in ("tweet-sentiment", "tabular-dec-2021")])
def test_unusable_answers_are_our_fault(name):
    truth, guess = example(name)
    if name == "transparent-conductors":
        truth = pd.concat([truth, truth[:1]])  # an id twice
    elif name in LOG_LOSS:
        truth = truth.assign(**{truth.columns[1]: 1, truth.columns[2]: 1})
    else:
        truth = truth.assign(**{truth.columns[1]: 1})
    with pytest.raises(GraderFault):
        grade(name, guess, truth)
