"""tasks/grading.py: which submissions are valid, what they score, and a named reason for every other one (case 35)."""

import os
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tasks import GraderFault, InvalidSubmission
from tasks.grading import grade_accuracy, grade_auc, grade_kappa, read_submission_file

TEXT_ANSWERS = pd.DataFrame({"id": ["a", "b", "c", "d"], "y": [0, 1, 0, 1]})
NUMBER_ANSWERS = pd.DataFrame({"id": [7, 12, 30, 4], "y": [0, 1, 0, 1]})
GOOD = b"id,y\na,0.1\nb,0.9\nc,0.6\nd,0.4\n"  # AUC 3/4: of the four pairs only (c, d) is in the wrong order


def grade(submission: bytes, answers: pd.DataFrame = TEXT_ANSWERS) -> float:
    return grade_auc(submission, answers, "id", "y")


# grading: what is accepted

VALID = {
    "plain": GOOD,
    "shuffled rows": b"id,y\nd,0.4\nb,0.9\na,0.1\nc,0.6\n",
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "byte order mark before a quoted header": b"\xef\xbb\xbf" + GOOD.replace(b"id,y", b'"id","y"'),
    "CRLF": GOOD.replace(b"\n", b"\r\n"),
    "CR": GOOD.replace(b"\n", b"\r"),
    "quoted cells": b'"id","y"\n"a","0.1"\n"b","0.9"\n"c","0.6"\n"d","0.4"\n',
    "no final newline": GOOD.rstrip(),
    "blank lines": b"\n  \n" + GOOD.replace(b"\n", b"\n\n   \n"),
    "index column": b",id,y\n0,a,0.1\n1,b,0.9\n2,c,0.6\n3,d,0.4\n",
    "index without a header cell": b"id,y\n0,a,0.1\n1,b,0.9\n2,c,0.6\n3,d,0.4\n",
    "extra columns": b"id,z,y\na,inf,0.1\nb,,0.9\nc,\"two\nlines\",0.6\nd," + b"x" * 200_000 + b",0.4\n",
    "a repeated target column": b"id,y,y\na,0.1,1\nb,0.9,0\nc,0.6,nan\nd,0.4,x\n",
    "other spellings of numbers": b"id,y\na,+.1\nb, 9e-1 \nc,0.60\nd,4E-1\n",
    "negative zero": b"id,y\na,-0.0\nb,1\nc,0.6\nd,0.4\n",
}
INVALID = {
    "empty": (b"", "empty"),
    "an empty table of pandas": (b'""\n', "column"),
    "only blanks": (b"\xef\xbb\xbf \r\n\n", "empty"),
    "header only": (b"id,y\n", "missing"),
    "gzip": (b"\x1f\x8b\x08\x00\x00\x00", "NUL|UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "NUL|UTF-8"),
    "Latin-1": (b"id,y\n\xe9,0.1\n", "UTF-8"),
    "NUL after a number": (GOOD.replace(b"0.9", b"0.9\0"), "NUL"),
    "a row with too many cells": (GOOD + b"e,1,1,1\n", "parsed|extra"),
    "an unterminated quote": (b'id,y\na,0.1\nb,"0.9\nc,0.6\nd,0.4\n', "parsed"),
    "no target column": (GOOD.replace(b"id,y", b"id,Y"), "column 'y' is missing"),
    "no id column": (GOOD.replace(b"id,y", b"ID,y"), "column 'id' is missing"),
    "duplicate id": (GOOD + b"b,0.9\n", "duplicate id 'b'"),
    "duplicate instead of missing id": (GOOD.replace(b"\nd,", b"\na,"), "duplicate id 'a'"),
    "missing id": (GOOD.replace(b"d,0.4\n", b""), "1 of 4 ids are missing, such as 'd'"),
    "extra id": (GOOD + b"e,0.9\n", "extra id .*'e'"),
    "padded text id": (GOOD.replace(b"\nd,", b"\n d,"), "extra id .*' d'"),
    "capital text id": (GOOD.replace(b"\nd,", b"\nD,"), "extra id .*'D'"),
    "NaN": (GOOD.replace(b"0.9", b"nan"), "missing value"),
    "empty cell": (GOOD.replace(b"0.9", b""), "missing value"),
    "a row without its last cell": (GOOD.replace(b"b,0.9", b"b"), "missing value"),
    "infinity": (GOOD.replace(b"0.9", b"-Infinity"), "infinite"),
    "overflow": (GOOD.replace(b"0.9", b"1e400"), "infinite"),
    "text": (GOOD.replace(b"0.9", b"high"), "'high', which is not a number"),
    "underscore": (GOOD.replace(b"0.9", b"0_1"), "not a number"),
    "full-width digit": (GOOD.replace(b"0.9", "１".encode()), "not a number"),
    "True among numbers": (GOOD.replace(b"0.9", b"True"), "not a number"),
    "above 1": (GOOD.replace(b"0.9", b"1.0000000000000002"), r"holds 1.0000000000000002, outside of \[0, 1\]"),
    "below 0": (GOOD.replace(b"0.1", b"-1e-9"), r"outside of \[0, 1\]"),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_submission(name):
    assert grade(VALID[name]) == 0.75


@pytest.mark.parametrize("name", INVALID)
def test_invalid_submission_names_its_error(name):
    submission, reason = INVALID[name]
    with pytest.raises(InvalidSubmission, match=reason):
        grade(submission)


def test_booleans_are_one_and_zero():
    assert grade(b"id,y\na,False\nb,True\nc,True\nd,True\n") == grade(b"id,y\na,0\nb,1\nc,1\nd,1\n") == 0.75


def test_integer_ids_match_as_numbers():
    assert grade(b"id,y\n0007,0.1\n 12 ,0.9\n30.0,0.6\n+4,0.4\n", NUMBER_ANSWERS) == 0.75
    for ids, reason in ((b"12.5", "extra"), (b"x", "not a number"), (b"7.0", "duplicate"), (b"", "missing value")):
        with pytest.raises(InvalidSubmission, match=reason):
            grade(b"id,y\n7,0.1\n" + ids + b",0.9\n30,0.6\n4,0.4\n", NUMBER_ANSWERS)


@pytest.mark.parametrize("ids", [[7, 8, 9, 10], [2**53, 2**53 + 1, 4, 5], [2**70, 2**70 + 1, 1, 2], ["x", 7, "y", 8]])
def test_integer_ids_of_any_size_and_in_a_column_of_objects(ids):
    answers = NUMBER_ANSWERS.assign(id=pd.Series(ids, dtype=object))
    table = pd.DataFrame({"id": ids, "y": [0.1, 0.9, 0.6, 0.4]})
    assert grade(table.to_csv(index=False).encode(), answers) == 0.75


@pytest.mark.parametrize("ids", [[1, 1.0, 2, 3], [1, "1", 2, 3], [1, None, 2, 3]])
def test_ids_of_the_answers_that_collide_are_our_fault(ids):
    with pytest.raises(GraderFault, match=r"duplicate|missing id"):
        grade(b"id,y\n1,1\n1,0\n2,1\n3,1\n", NUMBER_ANSWERS.assign(id=pd.Series(ids, dtype=object)))


@pytest.mark.parametrize("cell", [b"1e19", b"-1e300", b"9223372036854775808"])
def test_a_label_of_any_size_is_a_label(cell):
    submission, near = (b"id,y\na,0\nb," + number + b"\nc,0\nd,1\n" for number in (cell, b"-5" if b"-" in cell else b"5"))
    assert grade_accuracy(submission, TEXT_ANSWERS, "id", "y") == 0.75
    assert grade_kappa(submission, TEXT_ANSWERS, "id", "y") == grade_kappa(near, TEXT_ANSWERS, "id", "y") < 1


def test_labels_that_are_texts_are_compared_as_text():
    answers = TEXT_ANSWERS.assign(y=["cat", "NA", "cat", "dog"])
    assert grade_accuracy(b"id,y\na,cat\nb,NA\nc,Cat\nd,7\n", answers, "id", "y") == 0.5
    with pytest.raises(InvalidSubmission, match="missing value"):
        grade_accuracy(b"id,y\na,cat\nb,\nc,cat\nd,dog\n", answers, "id", "y")
    for unusable in (answers, TEXT_ANSWERS.assign(y=[0, 1, None, 1])):
        with pytest.raises(GraderFault):
            grade_kappa(GOOD, unusable, "id", "y")


def test_score_is_scikit_learns():
    rng = np.random.default_rng(0)
    answers = pd.DataFrame({"id": np.arange(500), "y": rng.integers(0, 2, 500)})
    predictions = np.where(rng.random(500) < 0.3, 0.5, rng.random(500))  # with ties
    table = pd.DataFrame({"id": answers["id"], "y": predictions}).sample(frac=1, random_state=0)
    score = grade(table.to_csv(index=False).encode(), answers)
    assert score == roc_auc_score(answers["y"], predictions)


@pytest.mark.parametrize("labels", [[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 2, 1], [0, 1, np.nan, 1]])
def test_answers_without_two_classes_are_our_fault(labels):
    with pytest.raises(GraderFault):
        grade(GOOD, TEXT_ANSWERS.assign(y=labels))


@pytest.mark.parametrize(
    "hostile",
    [
        b"id,y," + b"z," * 3_000_000 + b"\na,0.1\n",
        b'"' + b"q" * 200_000 + b'",' + b"z," * 3_000_000 + b"\na,0.1\n",
        b"id,y\n" + b"1," * 3_000_000 + b"1\n",
        GOOD + b"1," * 3_000_000 + b"1\n",
        GOOD.replace(b"0.9", b"1" * 3_000_000 + b"x"),
        GOOD + b"e,1\n" * 3_000_000,
    ],
    ids=["columns", "columns after a long one", "cells in row one", "cells in a late row", "digits", "rows"],
)
def test_oversized_submission_is_refused_quickly(hostile):
    started = time.perf_counter()
    with pytest.raises(InvalidSubmission) as error:
        grade(hostile)
    assert time.perf_counter() - started < 5
    assert len(str(error.value)) < 400


# grading: what kind of file


def test_only_regular_csv_files_are_read(tmp_path):
    good = tmp_path / "submission.csv"
    good.write_bytes(GOOD)
    assert read_submission_file(good) == GOOD
    (tmp_path / "link.csv").symlink_to(good)
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "directory.csv").mkdir()
    (tmp_path / "submission.txt").write_bytes(GOOD)
    (tmp_path / ".csv").write_bytes(GOOD)
    reasons = {
        "link.csv": "symbolic link",
        "fifo.csv": "a FIFO",
        "directory.csv": "a directory",
        "submission.txt": r"not named \*.csv",
        ".csv": r"not named \*.csv",
        "absent.csv": "No such file",
    }
    for name, reason in reasons.items():
        with pytest.raises(InvalidSubmission, match=reason):
            read_submission_file(tmp_path / name)
