"""tasks: the graders' rules, what the public files may hold, and the ladder of the twins."""

import dataclasses
import hashlib
import json
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from pipelines import random_pizza as random_pizza_ladder
from tasks import InvalidSubmission, find_task, load_task, random_pizza, task_names
from tasks.__main__ import main
from tasks.tables import FILE, row_files, to_csv
from tasks.task import twin_generator


def public_bytes(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read_table(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    return pd.DataFrame(json.loads(path.read_bytes()))


# rewards


def test_normalised_score_is_monotone_and_clipped(tmp_path):
    task = load_task("random-pizza", tmp_path, "reward")
    rewards = [task.normalise(score) for score in (-1.0, 0.0, 0.25, task.baseline, 0.75, 1.0, 2.0)]
    assert rewards == [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0]
    loss = dataclasses.replace(task, higher_is_better=False, best=0.0, worst=4.0)
    assert [loss.normalise(score) for score in (36.0, 4.0, 3.0, 2.0, 0.0)] == [-1.0, -1.0, -0.5, 0.0, 1.0]


# tasks


@pytest.mark.parametrize("name", [name for name in task_names() if name != "patent-phrases"])
def test_sample_submission_scores_the_baseline(name, tmp_path):
    task = load_task(name, tmp_path, "test")
    depends_on_data = {"quadratic_kappa": 0.15, "accuracy": 0.1, "mean_column_rmsle": 0.05, "log_loss": 0.05}
    score = task.grade((task.public_dir / task.schema.sample_file).read_bytes())
    assert abs(score - task.baseline) <= depends_on_data.get(task.metric, 0)


def test_sample_submission_of_patents_has_no_correlation(tmp_path):
    task = load_task("patent-phrases", tmp_path, "test")
    with pytest.raises(InvalidSubmission, match="all predictions are equal"):
        task.grade((task.public_dir / task.schema.sample_file).read_bytes())


@pytest.fixture
def small_splits(monkeypatch):
    """Fewer hidden rows, for tests that only look at what files hold."""
    for module in map(find_task, task_names()):
        for size in ("HIDDEN_ROWS", "HIDDEN_ROWS_PER_SPECIES"):
            if hasattr(module, size):
                monkeypatch.setattr(module, size, getattr(module, size) // 4)


@pytest.mark.parametrize("name", task_names())
def test_salt_and_seed_decide_the_draw(name, tmp_path, small_splits):
    first, again, other, seeded = (
        load_task(name, tmp_path / str(i), "reward", seed=seed, salt=salt)
        for i, (seed, salt) in enumerate([(0, b"s"), (0, b"s"), (0, b"t"), (1, b"s")])
    )
    assert public_bytes(first.public_dir) == public_bytes(again.public_dir)
    pd.testing.assert_frame_equal(first.answers, again.answers)
    for task in (other, seeded):
        assert task.answers.iloc[:, 1:].to_numpy().tolist() != first.answers.iloc[:, 1:].to_numpy().tolist()
        files, others = public_bytes(task.public_dir), public_bytes(first.public_dir)
        own = task.schema.image_files or (task.schema.test_file,)
        assert all(files[name] != others[name] for name in files.keys() & others.keys() if name in own or "/" in name)


@pytest.mark.parametrize("name", task_names())
def test_public_files_hold_the_schema_and_no_label(name, tmp_path, small_splits):
    reward, test = (load_task(name, tmp_path, split, salt=b"s") for split in ("reward", "test"))
    schema = reward.schema
    used = {schema.id_column, *schema.numeric, *schema.text, *schema.categorical, *schema.codes}
    ids = []
    for task in (reward, test):
        train = read_table(task.public_dir / schema.train_file)
        rows = read_table(task.public_dir / schema.test_file)
        templates = zip(row_files(schema), (train, rows), strict=False)
        own = {template.format(**{schema.id_column: i}) for template, table in templates for i in table[schema.id_column]}
        assert set(public_bytes(task.public_dir)) == {schema.train_file, schema.test_file, schema.sample_file, *own}
        assert used <= set(rows.columns) <= set(train.columns)
        assert set(schema.label_columns) <= set(train.columns) - set(rows.columns)
        assert not {"species", "author", *schema.target_columns} & set(rows.columns)
        assert list(task.answers.columns) == [schema.id_column, *schema.target_columns]
        assert rows[schema.id_column].tolist() == task.answers[schema.id_column].tolist()
        assert not rows.duplicated(schema.id_column).any()
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o444 for path in task.public_dir.rglob("*") if path.is_file())
        ids += [set(train[schema.id_column]), set(rows[schema.id_column])]
    assert ids[0] == ids[2]
    if name != "transparent-conductors":  # numbered from 1 in each file, as in MLE-bench
        assert not ids[0] & ids[1] | ids[0] & ids[3] | ids[1] & ids[3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reward", "test"]


CHECKSUMS = {
    "hello-world": "705347c68ecb7b65",
    "insults": "122a2a5975cf7e25",
    "essay-scoring": "339eb451f9490645",
    "random-pizza": "16e0a9ac87f040c1",
    "tweet-sentiment": "62268e6325d4c162",
    "tabular-may-2022": "590b958c43da4292",
    "tabular-dec-2021": "16ae25344069c7d8",
    "patent-phrases": "a46235c120c63251",
    "plant-pathology": "3f4278e69c2919dd",
    "leaf-classification": "7b07f90c8eb7f400",
    "transparent-conductors": "8907d1a793302ddc",
    "spooky-author": "e2fec40c7b66d303",
    "chatbot-arena": "44a5a032c22d365e",
}


@pytest.mark.parametrize("name", task_names())
def test_twins_are_the_same_on_every_machine_and_quickly_made(name):
    started = time.perf_counter()
    split = find_task(name).make_twin(twin_generator(name, 0, b""), find_task(name).TRAIN_ROWS)
    assert time.perf_counter() - started < 5
    digest = hashlib.sha256()
    for table in split:
        digest.update(to_csv(table.drop(columns=FILE, errors="ignore")))
        digest.update(b"".join(table.get(FILE, [])))
    assert digest.hexdigest()[:16] == CHECKSUMS[name]


def test_pizza_test_file_has_the_fields_known_when_posting(tmp_path):
    task = load_task("random-pizza", tmp_path, "test")
    train, rows = (json.loads((task.public_dir / name).read_text()) for name in ("train.json", "test.json"))
    assert len(train) == 200 and len(rows) == 400
    assert len(rows[0]) == 16 and len(train[0]) == 31
    assert not [field for field in rows[0] if "retrieval" in field or "received" in field or "edited" in field]
    assert "requester_user_flair" not in rows[0] and "request_text" not in rows[0]
    assert random_pizza.LEAK not in train[0]
    kinds = {type(record["requester_user_flair"]) for record in train}
    assert kinds == {str, type(None)}
    assert isinstance(train[0]["requester_subreddits_at_request"], list)
    assert isinstance(train[0]["requester_received_pizza"], bool)


def test_hello_world_ids_do_not_tell_the_row(tmp_path):
    task = load_task("hello-world", tmp_path, "reward", salt=b"s")
    train = read_table(task.public_dir / "train.csv")
    original = find_task("hello-world").load_breast_cancer().data[:, 3].tolist()  # the areas, almost all different
    places = [original.index(area) for area in train["mean_area"]]
    assert abs(np.corrcoef(train["id"], places)[0, 1]) < 0.25
    assert abs(np.corrcoef(train.index, places)[0, 1]) < 0.25


def test_public_directory_is_reused_replaced_or_refused(tmp_path):
    task = load_task("random-pizza", tmp_path, "reward")
    inode = task.public_dir.stat().st_ino
    load_task("random-pizza", tmp_path, "reward")
    assert task.public_dir.stat().st_ino == inode
    before = public_bytes(task.public_dir)
    (task.public_dir / "train.json").unlink()  # incomplete: written anew
    load_task("random-pizza", tmp_path, "reward")
    assert public_bytes(task.public_dir) == before
    (task.public_dir / "thesis.txt").write_text("not ours")
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        load_task("random-pizza", tmp_path, "reward", seed=1)


def test_names_ids_and_bad_arguments(tmp_path):
    assert load_task("random-acts-of-pizza", tmp_path, "test").name == "random-pizza"
    bad = [
        (("random-piza", "test"), {}, "hello-world.*chatbot-arena.*Did you mean 'random-pizza'"),
        (("random-pizza", "val"), {}, "reward, test"),
        (("random-pizza", "test"), {"rows": 3}, "--rows 3"),
        (("hello-world", "test"), {"rows": 560}, "at most 469"),
        (("hello-world", "test"), {"data_dir": tmp_path}, "built in"),
    ]
    for (name, split), options, reason in bad:
        with pytest.raises(ValueError, match=reason):
            load_task(name, tmp_path, split, **options)


# real data


def write_mle_bench_layout(data_dir: Path) -> pd.DataFrame:
    """Write a small random-acts-of-pizza as MLE-bench prepares it and return its answers."""
    train, _, test = random_pizza.make_twin(twin_generator("fake", 0, b""), 120)
    train, test = (table.assign(giver_username_if_known="somebody") for table in (train, test[:50]))
    public, private = (data_dir / "random-acts-of-pizza/prepared" / kind for kind in ("public", "private"))
    public.mkdir(parents=True)
    private.mkdir()
    fields = [*random_pizza.TEST_FIELDS, "giver_username_if_known"]
    (public / "train.json").write_text(json.dumps(train.to_dict("records"), indent=4))
    (public / "test.json").write_text(json.dumps(test[fields].to_dict("records"), indent=4))
    truth = test[["request_id", random_pizza.TARGET]].astype({random_pizza.TARGET: int})
    truth.sample(frac=1, random_state=0).to_csv(private / "test.csv", index=False)
    return truth.reset_index(drop=True)


def test_real_data_round_trip(tmp_path, caplog):
    truth = write_mle_bench_layout(tmp_path / "data")
    public = tmp_path / "data/random-acts-of-pizza/prepared/public"
    reward, test = (
        load_task("random-pizza", tmp_path / "run", split, data_dir=tmp_path / "data", salt=split.encode())
        for split in ("reward", "test")
    )
    assert "giver_username_if_known" in caplog.text
    given = {record["request_id"]: record for record in json.loads((public / "train.json").read_text())}
    train = json.loads((reward.public_dir / "train.json").read_text())
    assert train == json.loads((test.public_dir / "train.json").read_text())
    assert len(train) == 102 and len(reward.answers) == 18
    for record in train:
        assert record == {k: v for k, v in given[record["request_id"]].items() if k != "giver_username_if_known"}
    carved = json.loads((reward.public_dir / "test.json").read_text())
    assert {record["request_id"] for record in carved} == set(given) - {record["request_id"] for record in train}
    assert {tuple(record) for record in carved} == {random_pizza.TEST_FIELDS}
    labels = [int(given[name][random_pizza.TARGET]) for name in reward.answers["request_id"]]
    assert reward.answers[random_pizza.TARGET].tolist() == labels
    pd.testing.assert_frame_equal(test.answers, truth)
    assert test.data == "real" and test.thresholds["silver"] == 0.76482
    assert load_task("random-pizza", tmp_path / "twin", "test").thresholds == {}


def test_real_data_names_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"public/train\.json .*random-acts-of-pizza/prepared/public"):
        load_task("random-pizza", tmp_path / "run", "reward", data_dir=tmp_path)
    write_mle_bench_layout(tmp_path)
    prepared = tmp_path / "random-acts-of-pizza/prepared"
    (prepared / "private/test.csv").unlink()
    load_task("random-pizza", tmp_path / "run", "reward", data_dir=tmp_path)  # training never opens the private answers
    with pytest.raises(FileNotFoundError, match=r"private/test\.csv"):
        load_task("random-pizza", tmp_path / "run", "test", data_dir=tmp_path)
    (prepared / "public/train.json").write_text('[{"request_id": "t3_1"}]')
    with pytest.raises(ValueError, match="lacks the field 'request_text_edit_aware'"):
        load_task("random-pizza", tmp_path / "run", "reward", data_dir=tmp_path)
    for content, reason in (("[{", "cannot be read as JSON"), ("5", "not a list of records"), ("[5]", "not a list of records")):
        (prepared / "public/train.json").write_text(content)
        with pytest.raises(ValueError, match=rf"public/train\.json .*{reason}|public/train\.json is {reason}"):
            load_task("random-pizza", tmp_path / "run", "reward", data_dir=tmp_path)
    write_mle_bench_layout(tmp_path / "other")
    (tmp_path / "other/random-acts-of-pizza/prepared/private/test.csv").write_text("id\n1\n")
    with pytest.raises(ValueError, match=r"private/test\.csv lacks the column 'request_id'"):
        load_task("random-pizza", tmp_path / "run", "test", data_dir=tmp_path / "other")


# the ladder: better engineering scores better


def pizza_ladder(salt: bytes) -> list[float]:
    """Return the private-split AUC of a linear model, of a tuned blend and of the rule's own probability."""
    _, rule = random_pizza.draw_requests(twin_generator("random-pizza", 0, salt), 1000)
    train, _, test = random_pizza.make_twin(twin_generator("random-pizza", 0, salt), 200)
    truth = test["requester_received_pizza"].astype(int)
    _, linear, tuned = random_pizza_ladder(train, test, random_pizza.SCHEMA)
    return [roc_auc_score(truth, scores) for scores in (linear, tuned, rule[-400:])]


def test_pizza_ladder():
    ladders = np.array([pizza_ladder(bytes([i])) for i in range(8)])  # (draws, models)
    linear, tuned, rule = ladders.mean(axis=0)
    assert 0.60 < linear < 0.72 and 0.74 < tuned < 0.84 and 0.88 < rule < 0.94
    assert (ladders[:, 2] > ladders[:, 1]).all()
    gaps = np.diff(ladders, axis=1)  # (draws, 2)
    assert (gaps.mean(axis=0) > 3 * gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))).all()
    assert tuned - linear > 0.07 and rule - tuned > 0.07


# command line


def run_cli(*arguments: object) -> int:
    """Return the exit code of `python -m tasks`, run in this process."""
    try:
        return main([*map(str, arguments)])
    except SystemExit as end:  # argparse
        return end.code


def test_cli_makes_and_grades(tmp_path, capsys):
    assert run_cli("make", "random-pizza", tmp_path / "twin", "--rows", 50, "--salt", "00ff") == 0
    private = tmp_path / "twin/private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert sorted(path.name for path in private.iterdir()) == ["reward.csv", "test.csv"]
    capsys.readouterr()
    answers = ["--answers", tmp_path / "twin"]
    assert run_cli("grade", "random-pizza", private / "test.csv", *answers) == 0
    assert json.loads(capsys.readouterr().out) == {"valid": True, "score": 1.0}
    assert run_cli("grade", "random-pizza", private / "test.csv", *answers, "--split", "reward") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["valid"] is False and "extra id" in verdict["reason"]


def test_cli_refuses_bad_arguments_in_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    bad = [
        ("make", "random-pizza", tmp_path),  # in use
        ("make", "random-pizza", tmp_path / "new", "--salt", "xyz"),
        ("show", "random-piza"),
        ("grade", "random-pizza", tmp_path / "file", "--answers", tmp_path),
        ("grade", "random-pizza", "submission.csv", "--ans", tmp_path),  # no abbreviations
    ]
    for arguments in bad:
        code, (out, err) = run_cli(*arguments), capsys.readouterr()
        assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_cli_lists_and_shows_and_its_exit_code_is_that_of_the_process(capsys):
    command, here = [sys.executable, "-m", "tasks"], Path(__file__).parent.parent
    done = subprocess.run([*command, "list"], cwd=here, capture_output=True, text=True, timeout=30, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == task_names()
    assert run_cli("show", "random-pizza") == 0 and "gold 0.97908" in capsys.readouterr().out
    assert subprocess.run([*command, "show", "random-piza"], cwd=here, capture_output=True, timeout=30).returncode == 2
