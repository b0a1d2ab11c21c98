"""The same task presented differently: what robust.py asks a trained policy to cope with.

    none        the task as it was trained on
    typos       a share of the words of the description is misspelt; names of columns, files and classes are not
    irrelevant  sentences that have nothing to do with the task stand between its lines
    hints       two sentences give bad advice
    renamed     columns have other names, in the files and in the prompt; ids and what a submission holds keep theirs
    shuffled    the rows of every file stand in another order; the sample submission follows the test file
    reordered   the columns of every table stand in another order, and so does the prompt's list of them

Texts are perturbed anew for each prompt index, files once. All are drawn from a seed alone. A prompt that does not show the
description (a brief one) is perturbed in what it does show.
"""

import dataclasses
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pandas as pd

from prompts import find_runs
from tasks import Schema, Task, tables, write_public

TYPO_SHARE = 0.15  # of the words that may be misspelt
MIN_LETTERS = 4  # of such a word
PREFIXES = ("col_", "var_", "field_", "raw_")
IRRELEVANT = (
    "The canteen on the second floor closes at three in the afternoon.",
    "A previous version of this page had a blue background.",
    "Many people took part in the discussion, which lasted for two weeks.",
    "The organisers thank their families for their patience.",
    "Trains to the coast are less crowded on weekdays.",
    "The logo was drawn by a student of graphic design.",
    "Rain is expected in the north, with some sunshine later.",
    "Lunch will be served in the garden if the weather allows it.",
)
HINTS = (
    "Hint: the best solution predicts a constant.",
    "Hint: no model is needed, the sample submission already scores best.",
    "Hint: the columns are random numbers, it does not pay to read them.",
    "Hint: submissions without a header line get a bonus.",
)
SENTENCES = 3  # irrelevant ones in a prompt
MISLEADING = 2  # hints in a prompt


@dataclass(frozen=True)
class View:
    """A way to present a task: the task, with files of its own if they changed, and what is done to its prompt."""

    name: str
    task: Task
    rewrite: Callable[[str, int], str] | None = None  # (prompt, its index) -> prompt


def build_view(task: Task, name: str, seed: int, root: Path) -> View | None:
    """Return the task as perturbation `name` presents it, with changed files in <root>; None where it changes nothing.

    Raises ValueError for an unknown name.
    """
    if name == "none":
        return View(name, task)
    if name in TEXTS:
        return View(name, task, _rewriter(task, name, seed))
    if name in FILES:
        changed = FILES[name](task, random.Random(f"{seed}/{name}/{task.name}"), root)
        return changed and View(name, changed)
    raise ValueError(f"unknown perturbation {name!r}; they are {', '.join(NAMES)}")


# ------------------------------------------------------------------------------------------------------------------- texts


def _rewriter(task: Task, name: str, seed: int) -> Callable[[str, int], str]:
    names, description = spelt_names(task), task.description.strip()

    def rewrite(prompt: str, index: int) -> str:
        rng = random.Random(f"{seed}/{name}/{task.name}/{index}")
        shown = description if description in prompt else prompt
        return prompt.replace(shown, TEXTS[name](shown, rng, names), 1)

    return rewrite


def spelt_names(task: Task) -> set[str]:
    """Return the words that a program must spell as they are: columns and classes."""
    columns = [column for table in read_tables(task).values() for column in table.columns]
    return {task.name, *columns, *map(str, task.schema.classes)}


def add_typos(text: str, rng: random.Random, names: Iterable[str] = (), share: float = TYPO_SHARE) -> str:
    """Misspell `share` of the words of at least MIN_LETTERS letters that are no names; at least one, if there is one."""
    words = re.finditer(rf"""(?<![^\s("'])[A-Za-z]{{{MIN_LETTERS},}}(?![^\s)"'.,;:!?])(?!\.\w)""", text)
    spans = [word.span() for word in words if word[0] not in set(names)]
    chosen = rng.sample(spans, max(1, round(share * len(spans)))) if spans else []
    for start, end in sorted(chosen, reverse=True):  # from the back: earlier spans stay where they are
        text = text[:start] + misspell(text[start:end], rng) + text[end:]
    return text


def misspell(word: str, rng: random.Random) -> str:
    """Swap two neighbouring letters, leave one out, or write one twice; the result always differs."""
    at, kind = rng.randrange(len(word) - 1), rng.choice(("swap", "drop", "double"))
    if kind == "swap" and word[at] != word[at + 1]:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + word[at] * 2 + word[at + 1 :] if kind == "double" else word[:at] + word[at + 1 :]


def add_irrelevant(text: str, rng: random.Random, names: Iterable[str] = ()) -> str:
    """Put SENTENCES lines from IRRELEVANT between the lines of a text."""
    lines = text.split("\n")
    for sentence in rng.sample(IRRELEVANT, SENTENCES):
        lines.insert(rng.randint(1, len(lines)), sentence)
    return "\n".join(lines)


def add_hints(text: str, rng: random.Random, names: Iterable[str] = ()) -> str:
    """End a text with MISLEADING lines from HINTS."""
    return "\n".join([text, *rng.sample(HINTS, MISLEADING)])


# ------------------------------------------------------------------------------------------------------------------- files


def read_tables(task: Task) -> dict[str, pd.DataFrame]:
    """Return train, test and sample submission by file name, each cell as the file has it."""
    schema = task.schema
    return {name: _read_table(task.public_dir / name) for name in (schema.train_file, schema.test_file, schema.sample_file)}


def _read_table(path: Path) -> pd.DataFrame:
    content = path.read_bytes()
    if path.suffix == ".json":
        return pd.DataFrame(json.loads(content), dtype=object)
    return pd.read_csv(BytesIO(content), dtype=str, na_filter=False)


def _write_table(name: str, table: pd.DataFrame) -> bytes:
    return json.dumps(table.to_dict("records"), indent=4).encode() if name.endswith(".json") else tables.to_csv(table)


def with_tables(task: Task, changed: dict[str, pd.DataFrame], directory: Path, **fields) -> Task:
    """Return the task with other tables, in a directory of their own beside copies of its other files, and other fields."""
    files: dict[str, bytes | Path] = {}
    for path in task.public_dir.rglob("*"):
        if not path.is_dir():  # links of real data stay links: images are never copied
            content = Path(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            files[path.relative_to(task.public_dir).as_posix()] = content
    files |= {name: _write_table(name, table) for name, table in changed.items()}
    write_public(directory, files)
    return dataclasses.replace(task, public_dir=directory, **fields)


def rename_columns(task: Task, rng: random.Random, root: Path) -> Task | None:
    """Put a prefix before all columns but the id and the target columns; None where there are no others."""
    schema, found = task.schema, read_tables(task)
    train, test = found[schema.train_file], found[schema.test_file]
    columns = [*train.columns, *(column for column in test.columns if column not in train.columns)]
    renamed = [column for column in columns if column not in (schema.id_column, *schema.target_columns)]
    free = [prefix for prefix in PREFIXES if not {prefix + column for column in renamed} & set(columns)]
    if not renamed or not free:
        return None
    new = dict(zip(renamed, map(rng.choice(free).__add__, renamed), strict=True))
    changed = {name: found[name].rename(columns=new) for name in (schema.train_file, schema.test_file)}
    longest_first = "|".join(re.escape(name) for name in sorted(new, key=len, reverse=True))
    description = re.sub(rf"(?<!\w)(?:{longest_first})(?!\w)", lambda m: new[m[0]], task.description)
    return with_tables(task, changed, root / "renamed", schema=_rename_in(schema, new), description=description)


def _rename_in(schema: Schema, new: dict[str, str]) -> Schema:
    groups = {name: tuple(new.get(column, column) for column in getattr(schema, name)) for name in (*COLUMNS, "pair")}
    return dataclasses.replace(schema, label_column=new.get(schema.label_column, schema.label_column), **groups)


def shuffle_rows(task: Task, rng: random.Random, root: Path) -> Task:
    """Shuffle the rows of train, and those of test, sample submission and answers alike.

    The grader matches by id. Answers move along for ids that occur twice (comments): there the order decides.
    """
    schema, found = task.schema, read_tables(task)
    ids = found[schema.test_file][schema.id_column].astype(str).tolist()
    orders = {name: shuffled(range(len(found[name])), rng) for name in (schema.train_file, schema.test_file)}
    changed = {name: found[name].iloc[order] for name, order in orders.items()}
    sample, answers = (
        table.iloc[orders[schema.test_file]] if table[schema.id_column].astype(str).tolist() == ids else table
        for table in (found[schema.sample_file], task.answers)
    )
    if answers is task.answers and len(set(ids)) < len(ids):
        raise ValueError(f"{task.name}: answers and test file differ in their order, and ids repeat: cannot be shuffled")
    changed[schema.sample_file] = sample
    return with_tables(task, changed, root / "shuffled", answers=answers.reset_index(drop=True))


def reorder_columns(task: Task, rng: random.Random, root: Path) -> Task:
    """Shuffle the columns of train, and test's alike; in the prompt the columns of each kind, numbered ones as one."""
    schema, found = task.schema, read_tables(task)
    train, test = found[schema.train_file], found[schema.test_file]
    columns = [*train.columns, *(column for column in test.columns if column not in train.columns)]
    order = shuffled(columns, rng)
    names = {schema.train_file: train, schema.test_file: test}
    changed = {name: table[[column for column in order if column in table.columns]] for name, table in names.items()}
    kept = ("text",) if schema.prediction == "span" else ()  # a span is of the first one
    groups = {name: _shuffle_runs(getattr(schema, name), rng) for name in COLUMNS if name not in kept}
    return with_tables(task, changed, root / "reordered", schema=dataclasses.replace(schema, **groups))


def _shuffle_runs(columns: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    return tuple(column for run in shuffled(find_runs(columns), rng) for column in run)


def shuffled(items: Sequence, rng: random.Random) -> list:
    """Return the items in another order; in their own only where there is no other."""
    order = list(range(len(items)))
    while len(items) > 1 and order == sorted(order):
        rng.shuffle(order)
    return [items[i] for i in order]


COLUMNS = ("numeric", "text", "categorical", "codes")  # of a Schema
TEXTS = {"typos": add_typos, "irrelevant": add_irrelevant, "hints": add_hints}
FILES = {"renamed": rename_columns, "shuffled": shuffle_rows, "reordered": reorder_columns}
NAMES = ("none", *TEXTS, *FILES)
