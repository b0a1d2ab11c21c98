"""What the tasks of CSV tables share: public files, answers, and real data in MLE-bench's layout.

A table in memory is a DataFrame with the columns of the train file, labels included. Where each row has a file of its
own, an image or a geometry, the column FILE holds its bytes (twin) or its path (real data).
"""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd

from tasks.task import Schema

FILE = "_file"


def split_twin(table: pd.DataFrame, rows: int, hidden_rows: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the first `rows` rows to learn from, then two splits of hidden_rows to predict."""
    return table[:rows], table[rows : rows + hidden_rows], table[rows + hidden_rows : rows + 2 * hidden_rows]


def to_csv(table: pd.DataFrame) -> bytes:
    """Return the table as CSV. A lone carriage return, which readers take for the end of a row, makes it quote all texts."""
    text = table.to_csv(index=False, lineterminator="\n")
    if re.search(r"\r(?!\n)", text):
        text = table.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return text.encode()


def read_csv(path: Path) -> pd.DataFrame:
    """Return a CSV file of data as it is: texts such as NA stay texts, numbers keep every digit. Raises ValueError."""
    try:
        return pd.read_csv(path, na_filter=False, float_precision="round_trip", low_memory=False)
    except ValueError as error:  # pandas' ParserError is one
        raise ValueError(f"{path} cannot be read as CSV: {str(error).strip()}") from None


def require_columns(table: pd.DataFrame, columns: tuple[str, ...], where: object) -> None:
    """Raise ValueError unless the table has all columns; `where` names it."""
    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise ValueError(f"{where} lacks the column {absent[0]!r}: is it the competition's own file?")


def row_files(schema: Schema) -> tuple[str, ...]:
    """Return the paths, as templates, of the file that belongs to a row of train and of test; () if rows have none."""
    return schema.image_files or schema.geometry_files


def public_files(
    schema: Schema, test_columns: tuple[str, ...], train: pd.DataFrame, hidden: pd.DataFrame, sample: pd.DataFrame
) -> dict[str, bytes | Path]:
    """Return the public files of a split by name; of `hidden` only test_columns and the rows' own files enter them."""
    tables = {schema.train_file: train.drop(columns=FILE, errors="ignore"), schema.test_file: hidden[list(test_columns)]}
    files = {name: to_csv(table) for name, table in (tables | {schema.sample_file: sample}).items()}
    for template, table in zip(row_files(schema), (train, hidden), strict=False):
        names = (template.format(**{schema.id_column: i}) for i in table[schema.id_column])
        files |= dict(zip(names, table[FILE], strict=True))
    return files


def answers(schema: Schema, hidden: pd.DataFrame) -> pd.DataFrame:
    """Return the id and the target columns of each hidden row; a label becomes one 0/1 column per class.

    Raises ValueError for a label that is no class.
    """
    if not schema.label_column:
        return hidden[[schema.id_column, *schema.target_columns]].reset_index(drop=True)
    labels = hidden[schema.label_column]
    numbers = pd.Index(schema.classes).get_indexer(labels)
    if (numbers < 0).any():
        raise ValueError(f"column {schema.label_column!r} holds {labels[numbers < 0].iloc[0]!r}, which is none of the classes")
    table = pd.DataFrame(np.eye(len(schema.classes), dtype=int)[numbers], columns=schema.target_columns)
    table.insert(0, schema.id_column, hidden[schema.id_column].tolist())
    return table


def read_real(
    mle_id: str,
    schema: Schema,
    columns: tuple[tuple[str, ...], tuple[str, ...]],
    prepared: Path,
    with_test: bool,
    private: str = "test.csv",
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the public train table and, if asked for, the test table with its answers, from MLE-bench's files.

    columns are those of the train and of the test file. The private answers are opened only if asked for.
    Raises FileNotFoundError for a missing file, ValueError for a bad one.
    """
    names = [f"public/{schema.train_file}", f"public/{schema.test_file}", *([f"private/{private}"] if with_test else [])]
    require_layout(mle_id, prepared, names)
    train, test = (_read_public(schema, prepared / names[i], columns[i], i) for i in (0, 1))
    if not with_test:
        return train, None
    truth = read_csv(prepared / names[2])
    require_columns(truth, (schema.id_column, *schema.target_columns), prepared / names[2])
    test = _add_labels(schema, test, truth, prepared)
    return train, test[[column for column in (*columns[0], FILE) if column in test.columns]]


def require_layout(mle_id: str, prepared: Path, names: list[str]) -> None:
    """Raise FileNotFoundError, with the way out, unless `prepared` has the files of MLE-bench's layout."""
    missing = [name for name in names if not (prepared / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"no {missing[0]} in {prepared}: --data-dir must have MLE-bench's layout, {mle_id}/prepared/public and "
            f"{mle_id}/prepared/private; `python -m tasks prepare {mle_id} RAW_DIR DATA_DIR` makes it"
        )


def _read_public(schema: Schema, path: Path, columns: tuple[str, ...], part: int) -> pd.DataFrame:
    table = read_csv(path)
    require_columns(table, columns, path)
    table = table[list(columns)]
    if row_files(schema):
        template = row_files(schema)[part]
        paths = [path.parent / template.format(**{schema.id_column: i}) for i in table[schema.id_column]]
        missing = [p for p in paths if not p.is_file()]
        if missing:
            raise FileNotFoundError(f"{len(missing)} files of the rows of {path} are missing, such as {missing[0]}")
        table = table.assign(**{FILE: pd.Series(paths, dtype=object)})
    return table


def _add_labels(schema: Schema, test: pd.DataFrame, truth: pd.DataFrame, prepared: Path) -> pd.DataFrame:
    """Return test with the labels, and the other columns that only train has, of the rows of truth with the same ids."""
    test, truth = (  # by id and its number of earlier occurrences: a comment may occur twice
        table.set_index([table[schema.id_column], table.groupby(schema.id_column).cumcount()]) for table in (test, truth)
    )
    if set(test.index) != set(truth.index):
        raise ValueError(f"{prepared}: the ids of the public and the private test file differ; prepare the data again")
    truth = truth.loc[test.index]
    if schema.label_column:
        chosen = truth[list(schema.target_columns)].to_numpy()  # (rows, classes)
        if not (np.isin(chosen, (0, 1)).all() and (chosen.sum(axis=1) == 1).all()):
            raise ValueError(f"{prepared}: a row of the private test file does not name exactly one class; prepare it again")
        truth[schema.label_column] = np.array(schema.classes)[chosen.argmax(axis=1)]
    return pd.concat([test, truth[[c for c in truth.columns if c not in test.columns]]], axis=1).reset_index(drop=True)
