"""perturbations.py: each does what it says on real twins, and the grader still scores right."""

import json
import random

import pytest

from perturbations import HINTS, IRRELEVANT, MISLEADING, NAMES, SENTENCES, add_typos, build_view, misspell, read_tables
from prompts import build_prompt
from reward import grade
from sandbox import Sandbox
from tasks import load_task, task_names

PROGRAM = """
import numpy as np, pandas as pd
from sklearn.linear_model import Ridge
tr, te = pd.read_{s.file_format}("{s.train_file}"), pd.read_{s.file_format}("{s.test_file}")
x = lambda d: np.column_stack([d[c].fillna(0).astype(float) for c in {s.numeric}] +
                              [f(d[c].astype(str)) for c in {s.text} for f in
                               (lambda t: t.str.len(), lambda t: t.str.count(" "), lambda t: t.str.count("you"))])
mean, std = x(tr).mean(axis=0), x(tr).std(axis=0) + 1e-9
p = Ridge(1.0).fit((x(tr) - mean) / std, tr["{s.target_columns[0]}"].astype(float)).predict((x(te) - mean) / std)
p = (p - p.min()) / (p.max() - p.min())
pd.DataFrame({{"{s.id_column}": te["{s.id_column}"], "{s.target_columns[0]}": p}}).to_csv("submission.csv", index=False)
"""  # least squares: neither the order of the rows nor that of the columns matters


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    return {name: load_task(name, tmp_path_factory.mktemp(name), "reward", salt=b"test") for name in task_names()}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(memory_gib=2) as sandbox:
        yield sandbox


def score(sandbox, task, program=None):
    program = PROGRAM.format(s=task.schema) if program is None else program
    return grade(task, sandbox.run(program, task.public_dir))


def cells(table):
    """Return the rows as a multiset of their cells by column name."""
    return sorted(json.dumps(row, sort_keys=True) for row in table.to_dict("records"))


@pytest.mark.parametrize("name", ["renamed", "shuffled", "reordered"])
@pytest.mark.parametrize("task", ["random-pizza", "tabular-may-2022", "insults", "patent-phrases"])
def test_a_correct_program_scores_the_same(twins, sandbox, tmp_path, task, name):
    base, reason = score(sandbox, twins[task])
    view = build_view(twins[task], name, 0, tmp_path)
    changed, reason_changed = score(sandbox, view.task)
    assert (reason, reason_changed) == ("", "") and changed == pytest.approx(base, abs=1e-6)
    assert base != pytest.approx(twins[task].baseline, abs=1e-3)


def test_a_program_for_the_old_columns_fails_on_renamed_ones(twins, sandbox, tmp_path):
    view = build_view(twins["random-pizza"], "renamed", 0, tmp_path)
    failed, reason = score(sandbox, view.task, PROGRAM.format(s=twins["random-pizza"].schema))
    assert failed is None and "KeyError" in reason


def test_answers_follow_shuffled_rows_whose_ids_repeat(twins, tmp_path):
    """A comment may occur twice with different labels: the order tells which is which."""
    task = twins["insults"]
    ids = task.answers["Comment"]
    doubled = task.answers.assign(Comment=ids.mask(ids.index == 1, ids[0]), Insult=[1, 0, *task.answers["Insult"][2:]])
    tables = read_tables(task)
    tables["test.csv"] = tables["test.csv"].assign(Comment=doubled["Comment"])
    tables["sample_submission_null.csv"] = tables["sample_submission_null.csv"].assign(Comment=doubled["Comment"])
    for name, table in tables.items():
        (tmp_path / "twice").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "twice" / name, index=False)
    twice = type(task)(**{**vars(task), "answers": doubled, "public_dir": tmp_path / "twice"})
    for seed in range(4):
        shuffled = build_view(twice, "shuffled", seed, tmp_path / str(seed)).task
        truth = shuffled.answers[["Comment", "Insult"]]
        assert (truth["Comment"].tolist(), len(truth)) == (read_tables(shuffled)["test.csv"]["Comment"].tolist(), len(doubled))
        assert shuffled.grade(truth.to_csv(index=False).encode()) == 1.0


@pytest.mark.parametrize("name", task_names())
def test_renamed_leaves_values_ids_and_submissions_alone(twins, tmp_path, name):
    task, view = twins[name], build_view(twins[name], "renamed", 0, tmp_path)
    if view is None:
        assert name == "plant-pathology"  # has an id and targets only
        return
    s, old, new = view.task.schema, read_tables(task), read_tables(view.task)
    fixed = {s.id_column, *s.target_columns}
    for file in (s.train_file, s.test_file):
        assert new[file].to_numpy().tolist() == old[file].to_numpy().tolist()
        pairs = list(zip(old[file].columns, new[file].columns, strict=True))
        assert all((a == b) == (a in fixed) and b.endswith(a) for a, b in pairs)
    assert new[s.sample_file].equals(old[s.sample_file])
    shown = [*s.numeric, *s.text, *s.categorical, *s.codes, *s.pair]
    assert set(shown) <= set(new[s.test_file].columns) and set(s.label_columns) <= set(new[s.train_file].columns)
    gone = {a for a, b in pairs if a != b and "_" in a}
    assert not gone & set(view.task.description.replace(",", " ").replace("`", " ").split())


@pytest.mark.parametrize("name", task_names())
@pytest.mark.parametrize("kind", ["shuffled", "reordered"])
def test_shuffled_and_reordered_hold_the_same_cells(twins, tmp_path, name, kind):
    task, changed = twins[name], build_view(twins[name], kind, 0, tmp_path).task
    old, new = read_tables(task), read_tables(changed)
    for file, table in old.items():
        assert cells(table) == cells(new[file])
        assert (list(table.columns) == list(new[file].columns)) or kind == "reordered"
    assert not old[task.schema.train_file].equals(new[task.schema.train_file])
    other = [p.relative_to(task.public_dir) for p in task.public_dir.rglob("*") if p.is_file() and p.name not in old]
    assert all((changed.public_dir / p).read_bytes() == (task.public_dir / p).read_bytes() for p in other)
    if kind == "shuffled":
        i = task.schema.id_column
        assert new[task.schema.sample_file][i].tolist() == new[task.schema.test_file][i].tolist()


@pytest.mark.parametrize("brief", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_prompts_differ_where_the_policy_can_see_it_and_reproduce_by_seed(twins, tmp_path, name, brief):
    task = twins["random-pizza"]

    def prompt(seed, index, root):
        view = build_view(task, name, seed, tmp_path / root)
        text = build_prompt(view.task, brief=brief)
        return view.rewrite(text, index) if view.rewrite else text

    same = brief and name == "shuffled"  # a brief prompt shows no row
    assert (prompt(0, 3, "a") == build_prompt(task, brief=brief)) == same
    assert prompt(0, 3, "a") == prompt(0, 3, "b")
    seeds = {prompt(seed, 3, f"seed{seed}") for seed in range(6)}
    assert (len(seeds) == 1) == same
    if name in ("typos", "irrelevant", "hints"):
        assert len({prompt(0, index, "a") for index in range(6)}) > 1


@pytest.mark.parametrize(("name", "sentences", "count"), [("irrelevant", IRRELEVANT, SENTENCES), ("hints", HINTS, MISLEADING)])
@pytest.mark.parametrize("brief", [True, False])
def test_sentences_are_added_and_nothing_is_lost(twins, tmp_path, name, sentences, count, brief):
    task = twins["spooky-author"]
    before = build_prompt(task, brief=brief).split("\n")
    after = build_view(task, name, 0, tmp_path).rewrite("\n".join(before), 0).split("\n")
    assert [line for line in after if line not in sentences] == before
    assert len(after) == len(before) + count and len({*after} & {*sentences}) == count


def test_typos_are_a_share_of_the_words_and_spare_names():
    text = "alpha beta gamma delta `omega` read train.csv with some_name: (kappa) sigma, theta! iota zeta of to_be x1234 names"
    words = text.split()
    for share, expected in ((0.5, 6), (0.1, 1), (0.0, 1), (1.0, 11)):  # of the 11 plain words of four letters and more
        found = add_typos(text, random.Random(1), {"names"}, share).split()
        differ = {a for a, b in zip(words, found, strict=True) if a != b}
        assert len(differ) == expected
        assert not differ & {"`omega`", "train.csv", "some_name:", "of", "to_be", "x1234", "names"}


def test_a_misspelt_word_always_differs():
    assert all(misspell(word, random.Random(seed)) != word for word in ("aaaa", "abba", "word") for seed in range(40))


def test_an_unknown_perturbation_is_refused(twins, tmp_path):
    with pytest.raises(ValueError, match="they are none, typos"):
        build_view(twins["insults"], "upside-down", 0, tmp_path)
