"""Real data: raw downloads of all twelve competitions, prepared, loaded with --data-dir, and tasks of one's own."""

import functools
import io
import json
import math
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pandas as pd
import pytest
from sklearn.model_selection import train_test_split

from tasks import find_task, load_task, raw, tables, task_names
from tasks.__main__ import main
from tasks.task import twin_generator

COMPETITIONS = [name for name in task_names() if find_task(name).ID]
ROWS, MAY_TEST_ROWS = 60, 13
ZIPPED = {  # what lies in an archive of its own inside the download
    "leaf-classification": {"train.csv": "train.csv.zip", "images": "images.zip"},
    "transparent-conductors": {"train.csv": "train.csv.zip", "train": "train.zip"},
    "spooky-author": {"train.csv": "train.zip"},
}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@functools.cache
def raw_files(name: str) -> tuple[pd.DataFrame, dict[str, bytes]]:
    """Return the train table of a made-up competition and the download's files, archives inside it opened."""
    module = find_task(name)
    train, other, _ = module.make_twin(twin_generator(f"raw {name}", 0, b""), ROWS)
    beside = {"sample_submission.csv": b"id,y\n", "__MACOSX/._train.csv": b"\0", "test.csv": b"id\n1\n"}
    if name == "random-pizza":
        train = train.assign(giver_username_if_known="N/A")
        test = other[list(module.TEST_FIELDS)][:20].assign(giver_username_if_known="N/A")
        return train, {f"{n}.json": json.dumps(t.to_dict("records")).encode() for n, t in (("train", train), ("test", test))}
    table = train.drop(columns=tables.FILE, errors="ignore")
    files = {"train.csv": tables.to_csv(table)} | beside
    for template in tables.row_files(module.SCHEMA)[:1]:
        names = [template.format(**{module.SCHEMA.id_column: i}) for i in train[module.SCHEMA.id_column]]
        files |= dict(zip(names, train[tables.FILE], strict=True))
        files["images/Test_0.jpg"] = b"of Kaggle's own test split"
    if name == "insults":
        files["test_with_solutions.csv"] = tables.to_csv(other[:25].assign(Usage="PublicTest"))
    return table, files


def download(name: str, files: dict[str, bytes], path: Path) -> Path:
    """Write the download as Kaggle serves it: one archive with archives inside."""
    inner: dict[str, dict[str, bytes]] = {}
    outer = {}
    for file, content in files.items():
        archive = ZIPPED.get(name, {}).get(file.split("/")[0])
        (inner.setdefault(archive, {}) if archive else outer)[file] = content
    path.write_bytes(zipped(outer | {archive: zipped(members) for archive, members in inner.items()}))
    return path


def unpack(files: dict[str, bytes], directory: Path) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def read(path: Path) -> pd.DataFrame:
    return pd.DataFrame(json.loads(path.read_bytes())) if path.suffix == ".json" else tables.read_csv(path)


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(find_task("tabular-may-2022"), "RAW_TEST_ROWS", MAY_TEST_ROWS)
    for name in COMPETITIONS:
        if hasattr(find_task(name), "HIDDEN_ROWS"):
            monkeypatch.setattr(find_task(name), "HIDDEN_ROWS", 30)


def prepared(name: str, tmp_path: Path) -> tuple[pd.DataFrame, Path]:
    table, files = raw_files(name)
    return table, raw.prepare(find_task(name), download(name, files, tmp_path / f"{name}.zip"), tmp_path / "data")


@pytest.mark.parametrize("name", COMPETITIONS)
def test_prepare_splits_as_mle_bench_does(name, tmp_path):
    table, target = prepared(name, tmp_path)
    module, schema = find_task(name), find_task(name).SCHEMA
    assert target == tmp_path / "data" / module.ID / "prepared"
    train, test, sample = (read(target / "public" / f) for f in (schema.train_file, schema.test_file, schema.sample_file))
    private = "answers.csv" if name in ("essay-scoring", "chatbot-arena") else "test.csv"
    truth = read(target / "private" / private)
    size = {"tabular-may-2022": MAY_TEST_ROWS, "random-pizza": 20 / 80, "insults": None}.get(name, 0.1)
    expected = [table, truth] if size is None else train_test_split(table, test_size=size, random_state=0)
    count = {"tabular-may-2022": MAY_TEST_ROWS, "random-pizza": math.ceil(ROWS * 20 / 80), "insults": 25}.get(name, ROWS // 10)
    assert (len(test), len(truth), len(sample)) == (count,) * 3 and len(train) == len(expected[0])
    # the public side holds no label, the private side all of them
    labels = set(schema.label_columns)
    assert labels <= set(train.columns) and not labels & set(test.columns)
    assert set(schema.target_columns) <= set(truth.columns)
    assert test[schema.id_column].tolist() == truth[schema.id_column].tolist() == sample[schema.id_column].tolist()
    kept = [c for c in test.columns if c != schema.id_column and c in table.columns]
    for part, rows in zip((train, test), expected, strict=True):
        assert tables.to_csv(part[kept]) == tables.to_csv(rows[kept]) or name == "random-pizza"
    if name != "transparent-conductors":  # numbered from 1 in each split
        assert not set(train[schema.id_column]) & set(test[schema.id_column])
    if name == "random-pizza":
        assert train["request_id"].tolist() == expected[0]["request_id"].tolist()
        assert "giver_username_if_known" in test.columns and (target / "public/train.zip").is_file()


@pytest.mark.parametrize("name", COMPETITIONS)
def test_folders_give_the_same_as_the_archive(name, tmp_path):
    _, files = raw_files(name)
    archive = download(name, files, tmp_path / "all.zip")
    sources = [archive, unpack(files, tmp_path / "open")]
    with zipfile.ZipFile(archive) as opened:  # as unzip leaves it: the archives inside are still archives
        opened.extractall(tmp_path / "once")
    sources.append(tmp_path / "once")
    results = [tree(raw.prepare(find_task(name), source, tmp_path / f"out{i}")) for i, source in enumerate(sources)]
    assert results[0] == results[1] == results[2]
    assert tree(tmp_path / "open") == files  # the download is not touched


@pytest.mark.parametrize("name", COMPETITIONS)
def test_prepared_data_are_loaded_with_data_dir(name, tmp_path):
    _, target = prepared(name, tmp_path)
    before = tree(target)
    module, schema = find_task(name), find_task(name).SCHEMA
    reward, test = (load_task(name, tmp_path / "run", s, data_dir=tmp_path / "data") for s in ("reward", "test"))
    public_train = read(target / "public" / schema.train_file)
    carved = round(0.15 * len(public_train))
    train, rows = (read(reward.public_dir / f) for f in (schema.train_file, schema.test_file))
    assert (len(train), len(rows), len(reward.answers)) == (len(public_train) - carved, carved, carved)
    id_of = schema.id_column
    assert set(train[id_of]) | set(rows[id_of]) == set(public_train[id_of]) and not set(train[id_of]) & set(rows[id_of])
    assert not set(schema.label_columns) & set(rows.columns)
    truth = module.answers(public_train.set_index(id_of, drop=False).loc[rows[id_of]])
    pd.testing.assert_frame_equal(reward.answers, truth, check_dtype=False)
    assert (test.public_dir / schema.train_file).read_bytes() == (reward.public_dir / schema.train_file).read_bytes()
    for task in (reward, test):
        assert task.data == "real" and task.thresholds and len(task.answers) == len(read(task.public_dir / schema.test_file))
        if task.answers.iloc[:, 1:].nunique().min() > 1 or task.metric == "log_loss":  # else so few rows have no AUC
            assert math.isclose(task.grade(tables.to_csv(task.answers)), task.best, abs_tol=1e-9)
        for template, table in zip(tables.row_files(schema), (train, read(task.public_dir / schema.test_file)), strict=False):
            for i in table[id_of]:
                link = task.public_dir / template.format(**{id_of: i})
                assert link.is_symlink() and link.read_bytes() in before.values()
    assert tree(target) == before
    again = load_task(name, tmp_path / "run", "reward", data_dir=tmp_path / "data")
    assert again.public_dir == reward.public_dir


@pytest.mark.parametrize("name", COMPETITIONS)
def test_prepare_names_what_is_missing_and_leaves_nothing_behind(name, tmp_path):
    _, files = raw_files(name)
    module = find_task(name)
    out = tmp_path / "out"
    needed = [*module.RAW_FILES, *[file for file in files if file.endswith(("jpg", "xyz")) and "Test_0" not in file][:1]]
    for file in needed:
        incomplete = {f: content for f, content in files.items() if f != file}
        with pytest.raises(FileNotFoundError, match=f"lacks {file}"):
            raw.prepare(module, download(name, incomplete, tmp_path / "part.zip"), out)
    table = needed[0]
    for content in (b"a,b\n1,2\n", b"[{}]", b""):
        if table.endswith(".json") and content != b"[{}]":
            continue
        with pytest.raises(ValueError, match=r"lacks the column|cannot be read|Expecting"):
            raw.prepare(module, download(name, files | {table: content}, tmp_path / "bad.zip"), out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["leaf-classification", "insults"])
def test_an_interrupted_prepare_leaves_nothing_half_made(name, tmp_path, monkeypatch):
    _, files = raw_files(name)
    source = unpack(files, tmp_path / "open")
    out = tmp_path / "out"
    for step, error in (("write_bytes", OSError("disk full")), ("write_bytes", KeyboardInterrupt())):
        with monkeypatch.context() as patch:
            patch.setattr(Path, step, lambda *_, error=error: (_ for _ in ()).throw(error))
            with pytest.raises(type(error)):
                raw.prepare(find_task(name), source, out)
        assert not [path for path in out.rglob("*") if not path.is_dir()] and not list(out.rglob("*prepared*"))
    raw.prepare(find_task(name), source, out)
    with pytest.raises(ValueError, match="exists already"):
        raw.prepare(find_task(name), source, out)


def test_archives_cannot_write_outside_and_broken_ones_are_named(tmp_path):
    table, files = raw_files("plant-pathology")
    hostile = {"../../evil.txt": b"x", "/evil.txt": b"x", "images/../../../evil.jpg": b"x"}
    module, out = find_task("plant-pathology"), tmp_path / "a/b/out"
    raw.prepare(module, download("plant-pathology", files | hostile, tmp_path / "x.zip"), out)
    assert not list(tmp_path.rglob("evil*")) and not Path("/evil.txt").exists()
    content = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "half.zip").write_bytes(content[: len(content) // 2])
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/images.zip").write_bytes(content[:1000])
    os.mkfifo(tmp_path / "pipe.zip")
    broken = "neither a folder nor a zip"
    for source, reason in (("half.zip", broken), ("pipe.zip", broken), ("inner", r"images\.zip is not a zip archive")):
        with pytest.raises(ValueError, match=reason):
            raw.prepare(module, tmp_path / source, tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"no .*absent\.zip"):
        raw.prepare(module, tmp_path / "absent.zip", tmp_path / "other")
    ids = table["image_id"].tolist()
    files = files | {"train.csv": files["train.csv"].replace(f"{ids[0]},".encode(), b"../../../etc/passwd,")}
    with pytest.raises(FileNotFoundError, match="lacks images/"):
        raw.prepare(module, unpack(files, tmp_path / "open"), tmp_path / "other")


def test_what_mle_bench_prepared_is_no_raw_data(tmp_path):
    table, target = prepared("spooky-author", tmp_path)
    module, source = find_task("spooky-author"), target.parent  # as in MLE-bench: the archive beside prepared/
    assert [stat.S_IMODE((target / side).stat().st_mode) & 0o077 for side in raw.SIDES] == [0o055, 0]
    for path in (target, target / "public"):
        with pytest.raises(ValueError, match="prepared already"):
            raw.prepare(module, path, tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"lacks train\.csv"):
        raw.prepare(module, source, tmp_path / "other")
    shutil.move(tmp_path / "spooky-author.zip", source)
    again = raw.prepare(module, source, tmp_path / "other")
    assert tree(again) == tree(target) and len(read(again / "public/train.csv")) == len(table) - ROWS // 10


def test_raw_records_that_are_none_name_their_file(tmp_path):
    _, files = raw_files("random-pizza")
    for content, reason in ((b"{", "cannot be read as JSON"), (b'{"a": 1}', "is not a list of records"), (b"7", "is not")):
        source = download("random-pizza", files | {"train.json": content}, tmp_path / "bad.zip")
        with pytest.raises(ValueError, match=rf"train\.json in .*bad\.zip {reason}"):
            raw.prepare(find_task("random-pizza"), source, tmp_path / "out")
    source = download("random-pizza", files | {"test.json": b'[{"absent": 1}]'}, tmp_path / "bad.zip")
    with pytest.raises(ValueError, match="lacks the column 'absent'"):
        raw.prepare(find_task("random-pizza"), source, tmp_path / "out")
    assert main(["prepare", "random-pizza", str(source), str(tmp_path / "out")]) == 2


def test_an_unknown_class_is_refused(tmp_path):
    table, _ = raw_files("spooky-author")
    strange = tables.to_csv(table.assign(author="ABC"))
    with pytest.raises(ValueError, match="'author' holds 'ABC', which is none of the classes"):
        raw.prepare(find_task("spooky-author"), download("spooky-author", {"train.csv": strange}, tmp_path / "x.zip"), tmp_path)
    _, target = prepared("spooky-author", tmp_path)
    truth = read(target / "private/test.csv")
    for row in ([0, 0, 0], [1, 1, 0], [0.5, 0.5, 0]):
        truth[["EAP", "HPL", "MWS"]] = row
        (target / "private/test.csv").write_bytes(tables.to_csv(truth))
        with pytest.raises(ValueError, match="does not name exactly one class"):
            load_task("spooky-author", tmp_path / "run", "test", data_dir=tmp_path / "data")


def test_texts_survive_csv(tmp_path):
    texts = ["a\rb", "\r", "a\r\nb", "a\nb", 'a"b', ",", "", "NA", "7", "\r\r\n"]
    table = pd.DataFrame({"text": texts, "number": range(len(texts))})
    (tmp_path / "x.csv").write_bytes(tables.to_csv(table))
    pd.testing.assert_frame_equal(tables.read_csv(tmp_path / "x.csv"), table)
    plain = table[["\r" not in text for text in texts]]
    assert tables.to_csv(plain) == plain.to_csv(index=False, lineterminator="\n").encode()


def test_ids_that_lead_out_of_the_directory_are_refused(tmp_path):
    _, target = prepared("leaf-classification", tmp_path)
    path = target / "public/train.csv"
    table = tables.read_csv(path).astype({"id": str})
    table.loc[0, "id"] = "../../../outside"
    (target.parent / "outside.jpg").write_bytes(b"")
    path.write_bytes(tables.to_csv(table))
    with pytest.raises(ValueError, match="leads out of the directory"):
        load_task("leaf-classification", tmp_path / "run", "reward", data_dir=tmp_path / "data")
    (target / f"public/images/{table['id'][1]}.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 files of the rows of .*are missing"):
        load_task("leaf-classification", tmp_path / "run", "reward", data_dir=tmp_path / "data")


def test_command_line_prepares_and_claims_medals_on_real_data_only(tmp_path, capsys):
    _, files = raw_files("leaf-classification")
    source = str(download("leaf-classification", files, tmp_path / "leaf.zip"))
    data = tmp_path / "data"
    assert main(["prepare", "leaf-classification", source, str(data)]) == 0
    assert capsys.readouterr().out == f"{data}/leaf-classification/prepared\n"
    shutil.copy(data / "leaf-classification/prepared/private/test.csv", tmp_path / "perfect.csv")
    arguments = ["grade", "leaf-classification", str(tmp_path / "perfect.csv"), "--data-dir", str(data)]
    assert main(arguments) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict == {"valid": True, "score": pytest.approx(0, abs=1e-9), "medal": "gold", "above_median": True}
    os.mkfifo(tmp_path / "fifo.csv")
    for name, reason in (("fifo.csv", "a FIFO"), ("absent.csv", "No such file")):
        assert main([*arguments[:2], str(tmp_path / name), *arguments[3:]]) == 0
        assert reason in json.loads(capsys.readouterr().out)["reason"]
    for bad in (["prepare", "leaf-classification", source, str(data)], ["prepare", "hello-world", source, str(tmp_path)],
                ["prepare", "insults", source, str(tmp_path / "new")], [*arguments[:4], str(tmp_path)]):  # fmt: skip
        assert main(bad) == 2
        output = capsys.readouterr()
        assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1


@pytest.mark.parametrize(("byte", "value", "words"), [(0, 1, "encrypted"), (2, 99, "compression")])
def test_an_archive_that_zipfile_cannot_unpack_is_named(tmp_path, byte, value, words):
    """The bits that say so are set by hand: zipfile writes neither kind."""
    module = find_task("random-pizza")
    with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
        for name in module.RAW_FILES:
            archive.writestr(name, "[]")
    content = (tmp_path / "raw.zip").read_bytes()
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # local header, central directory
        start = -1
        while (start := content.find(signature, start + 1)) >= 0:
            place = start + flags + byte
            content = content[:place] + bytes([value]) + content[place + 1 :]
    (tmp_path / "raw.zip").write_bytes(content)
    with pytest.raises(ValueError, match=rf"raw\.zip cannot be read.*{words}"):
        raw.prepare(module, tmp_path / "raw.zip", tmp_path / "out")
    assert not list(tmp_path.rglob("*.json"))
