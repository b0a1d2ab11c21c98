"""Turn a raw Kaggle download into MLE-bench's layout, with the same split.

    prepare(find_task("leaf-classification"), Path("leaf-classification.zip"), Path("data"))
    data/leaf-classification/prepared/public/     what programs may see
    data/leaf-classification/prepared/private/    the answers of public/test.csv

A download is a folder or a zip archive, archives inside it opened or not. No member of an archive is written under its own
name, so none can lead out of the directory. The directory appears whole, after all checks, or not at all.
"""

import functools
import io
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import pandas as pd
from sklearn.model_selection import train_test_split

from tasks.tables import require_columns

Opener = Callable[[], BinaryIO]
Files = dict[str, bytes | Opener]  # name in public/ or private/ -> content, or where it comes from
SIDES = ("public", "private")


class Raw:
    """The files of a raw download by name: "train.csv" is also found as x/train.csv or inside train.zip.

    What lies in a folder prepared/, as MLE-bench has it beside the download, is left out. Raises ValueError for what is neither
    a folder nor a zip archive, or is prepared already, FileNotFoundError for what does not exist.
    """

    def __init__(self, path: Path):
        self.path, self._stack = path, ExitStack()
        self._openers: dict[tuple[str, ...], tuple[int, Opener]] = {}  # every end of a path -> its depth, the file
        if not path.exists():
            raise FileNotFoundError(f"no {path}: RAW_DIR is the folder or the zip archive that Kaggle served")
        top = path.parent if path.name in SIDES else path
        if all((top / side).is_dir() for side in SIDES):
            raise ValueError(f"{path} is prepared already (it has public/ and private/): RAW_DIR is what Kaggle served")
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    self._add(file.relative_to(path).parts, functools.partial(open, file, "rb"))
        elif path.is_file() and zipfile.is_zipfile(path):
            self._add_archive((), functools.partial(open, path, "rb"))
        else:
            raise ValueError(f"{path} is neither a folder nor a zip archive")

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _add(self, parts: tuple[str, ...], opener: Opener) -> None:
        if "__MACOSX" in parts or "prepared" in parts:
            return
        for start in range(len(parts)):  # the file that lies least deep has a name
            known = self._openers.get(parts[start:])
            if known is None or len(parts) < known[0]:
                self._openers[parts[start:]] = (len(parts), opener)
        if parts[-1].lower().endswith(".zip"):
            self._add_archive(parts, opener)

    def _add_archive(self, parts: tuple[str, ...], opener: Opener) -> None:
        file = self._stack.enter_context(opener())
        if isinstance(file, zipfile.ZipExtFile):  # in an archive: jumping about in it would unpack it again and again
            file = io.BytesIO(file.read())
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            raise ValueError(f"{self.path}: {'/'.join(parts)} is not a zip archive, perhaps only half of one") from None
        for member in archive.infolist():
            if not member.is_dir():
                self._add((*parts, *member.filename.split("/")), functools.partial(_open_member, archive, member))

    def require(self, names: Iterable[str]) -> None:
        """Raise FileNotFoundError, naming what is missing, unless all files are there."""
        missing = [name for name in names if tuple(name.split("/")) not in self._openers]
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise FileNotFoundError(f"{self.path} lacks {shown}: is it the whole download?")

    def file(self, name: str) -> Opener:
        """Return the function that opens a file. Raises FileNotFoundError."""
        self.require([name])
        return self._openers[tuple(name.split("/"))][1]

    def files(self, names: Iterable[str]) -> pd.Series:
        """Return the functions that open files. Raises FileNotFoundError, naming what is missing."""
        names = list(names)
        self.require(names)
        return pd.Series([self.file(name) for name in names], dtype=object)

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""
        with self.file(name)() as file:
            return file.read()

    def table(self, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
        """Return a CSV file as MLE-bench reads it. Raises FileNotFoundError, or ValueError for missing columns."""
        try:
            with self.file(name)() as file:
                table = pd.read_csv(file, float_precision="round_trip")
        except ValueError as error:  # pandas' ParserError is one
            raise ValueError(f"{name} in {self.path} cannot be read as CSV: {str(error).strip()}") from None
        require_columns(table, columns, f"{name} in {self.path}")
        return table


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BinaryIO:
    try:
        return archive.open(member)
    except RuntimeError as error:  # encrypted, or compressed in a way that zipfile does not know
        raise zipfile.BadZipFile(str(error)) from error


def split(table: pd.DataFrame, test_size: float | int = 0.1) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return MLE-bench's train and test rows. Raises ValueError for too few rows."""
    train, test = train_test_split(table, test_size=test_size, random_state=0)
    return train.copy(), test.copy()


def prepare(module: ModuleType, source: Path, data_dir: Path) -> Path:
    """Write <data_dir>/<MLE-bench id>/prepared from a raw download and return its path.

    Raises FileNotFoundError with what the download lacks, ValueError for a broken download or a target that exists.
    """
    if not hasattr(module, "prepare_raw"):
        raise ValueError(f"{module.NAME} has no raw download to prepare")
    target = data_dir / module.ID / "prepared"
    if target.exists():
        raise ValueError(f"{target} exists already: nothing is overwritten")
    try:
        with Raw(source) as raw:
            raw.require(module.RAW_FILES)
            _write(target, dict(zip(SIDES, module.prepare_raw(raw), strict=True)))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{source} cannot be read: {error!r}") from error
    return target


def _write(target: Path, sides: dict[str, Files]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".prepared-", dir=target.parent))
    try:
        for path, content in _paths(aside / "prepared", sides):
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                with content() as source, open(path, "wb") as copy:
                    shutil.copyfileobj(source, copy)
        (aside / "prepared/private").chmod(0o700)
        os.rename(aside / "prepared", target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _paths(directory: Path, sides: dict[str, Files]) -> Iterator[tuple[Path, bytes | Opener]]:
    for side, files in sides.items():
        for name, content in files.items():
            yield directory / side / name, content
