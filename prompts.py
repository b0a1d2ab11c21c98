"""What the policy reads and how its answer is read: prompts for both kinds of episode, and the program in a response.

Two variants carry the same content: `full` for language models that know English, `brief` (about 100 tokens) for the
context of the tiny policy. An improvement prompt adds an earlier program, the tail of its output and its score.
"""

import ast
import functools
import re
import warnings
from dataclasses import dataclass

import pandas as pd

from tasks import Task

PACKAGES = "numpy pandas scipy scikit-learn"
SYSTEM = "You are a machine-learning engineer. Answer with a short plan and one Python code block."
MIN_RUN = 4  # columns numbered one after the other that are named as first..last
MAX_TARGETS = 20  # columns to predict that a brief prompt names
MAX_LINE = 200  # characters of a line of the sample submission
ANSWER = "\n### Answer\n"  # separates prompt and response where a tokenizer has no chat template


@dataclass(frozen=True)
class Attempt:
    """An earlier program of a task: what an improvement prompt shows."""

    program: str
    output: str  # tail of what it printed, or of its traceback
    score: float | None  # reward: the normalised score on the reward split less penalties; None when it failed


def build_prompt(task: Task, earlier: Attempt | None = None, *, brief: bool = False, memory_gib: float = 4.0) -> str:
    """Write the prompt of one episode: from scratch, or to improve `earlier`."""
    lines = _brief_lines(task, memory_gib) if brief else _full_lines(task, memory_gib)
    if earlier is not None:
        score = "failed" if earlier.score is None else f"{earlier.score:.3f}"
        lines += [
            "Earlier program:", "```python", earlier.program.strip(), "```",
            "Its output:", earlier.output.strip()[-120 if brief else -1500 :],
            f"Its score: {score}", "Write a better program.",
        ]  # fmt: skip
    return "\n".join(lines)


def _brief_lines(task: Task, memory_gib: float) -> list[str]:
    s = task.schema
    columns = [("Numeric", s.numeric), ("Text", s.text), ("Categorical", s.categorical), ("Codes", s.codes), ("Pair", s.pair)]
    labels = [("Label", (s.label_column,) if s.label_column else ()), ("Classes", s.classes if s.prediction == "label" else ())]
    files = [("Images", dict.fromkeys(s.image_files)), ("Atoms", dict.fromkeys(s.geometry_files))]  # without repetition
    targets = _abbreviate(s.target_columns)
    if len(targets) > MAX_TARGETS:
        targets = [f"the {len(s.target_columns)} columns of {s.sample_file}"]
    return [
        f"Task {task.name}: {s.problem}, metric {task.metric}",
        f"Files {s.train_file} {s.test_file} {s.sample_file}",
        *(f"{kind} {' '.join(_abbreviate(names))}" for kind, names in columns if names),
        *(f"{kind} {' '.join(map(str, names))}" for kind, names in (*labels, *files) if names),
        f"Submission submission.csv: {s.id_column} {' '.join(targets)} as {s.prediction}",
        f"Limits {task.time_limit_s:g} s {memory_gib:g} GiB, {PACKAGES}",
    ]


def find_runs(columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Group columns that are numbered one after the other (f_00 f_01 ...), at least MIN_RUN of them; others stay alone."""
    runs: list[list[str]] = []
    for column in columns:
        if runs and column == _successor(runs[-1][-1]):
            runs[-1].append(column)
        else:
            runs.append([column])
    return [part for run in runs for part in ([tuple(run)] if len(run) >= MIN_RUN else [(column,) for column in run])]


def _successor(column: str) -> str | None:
    """Return the column numbered one higher: f_09 -> f_10, margin9 -> margin10; None if the name has no number at its end."""
    numbered = re.fullmatch(r"([A-Za-z_]\w*?)([0-9]+)", column, re.ASCII)
    return numbered and f"{numbered[1]}{str(int(numbered[2]) + 1).zfill(len(numbered[2]))}"


def _abbreviate(columns: tuple[str, ...]) -> list[str]:
    return [run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in find_runs(columns)]


def quoted(text: str) -> str:
    """Return a Python literal of the text, in double quotes where it has neither quotes nor backslashes."""
    return f'"{text}"' if text.isprintable() and not {'"', "\\"} & {*text} else repr(text)


def _full_lines(task: Task, memory_gib: float) -> list[str]:
    s = task.schema
    direction = "higher" if task.higher_is_better else "lower"
    sample = (task.public_dir / s.sample_file).read_text().splitlines()[:3]
    return [
        f"# Task: {task.name}", task.description.strip(), "",
        f"Metric: {task.metric} ({direction} is better).",
        "Files in the working directory:", *_preview(task), "",
        f"Write your predictions for {s.test_file} to submission.csv, in the format of {s.sample_file}:",
        *(line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..." for line in sample), "",
        f"Limits: {task.time_limit_s:g} s, {memory_gib:g} GiB of memory, one core, no network. Packages: {PACKAGES}.",
        "Write a short plan, then one complete Python program in a ```python block.",
    ]  # fmt: skip


@functools.lru_cache(maxsize=16)  # two files are read and parsed; the same for every prompt of a task
def _preview(task: Task) -> list[str]:
    """List each table with its rows, columns, dtypes, and the first row, cells cut at 40 characters; a run is one line."""
    lines = []
    for name in (task.schema.train_file, task.schema.test_file):
        path = task.public_dir / name
        table = pd.read_json(path) if path.suffix == ".json" else pd.read_csv(path)
        lines.append(f"- {name}: {len(table)} rows")
        first = table.iloc[0]
        for run, shown in zip(find_runs(tuple(table.columns)), _abbreviate(tuple(table.columns)), strict=True):
            lines.append(f"    {shown} ({table[run[0]].dtype}): {str(first[run[0]])[:40]!r}")
    for kind, paths in (("image", task.schema.image_files), ("atoms", task.schema.geometry_files)):
        lines += [f"- {path}: the {kind} of a row" for path in dict.fromkeys(paths)]
    return lines


def encode_prompt(tokenizer, prompt: str) -> list[int]:
    """Turn a prompt into token ids that end where the response starts."""
    if tokenizer.chat_template:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    return tokenizer(prompt + ANSWER, add_special_tokens=False)["input_ids"]


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n`]*$")
_PYTHON = {"", "py", "python", "python3"}
_WRAPPERS = {"markdown", "md"}  # around a whole answer: the program is inside


def extract_program(response: str) -> str | None:
    """Return the program in a response, or None when there is none.

    The first fenced Python block (```py, ```Python3, ~~~, or no language) is the program: a later block is a demo or a
    usage example. An unclosed fence runs to the end (a cut response fails by itself). A fence inside a triple-quoted
    string does not close the block when a later one does so with complete syntax. A lone closing fence ends the program
    that precedes it. Without any fence the whole response is the program if it is Python.
    """
    lines = re.split(r"\r\n|\n|\r", response)  # not splitlines(): a form feed or U+2028 belongs to the program
    fences = [(i, m[1], m[2].lower()) for i, line in enumerate(lines) if (m := _FENCE.match(line))]
    if not fences:
        return _bare_program(lines)
    opening = 0
    while opening < len(fences) and fences[opening][2] not in _PYTHON:  # skip a block in another language
        wraps = fences[opening][2] in _WRAPPERS and opening + 1 < len(fences) and fences[opening + 1][2]
        closing = [opening] if wraps else _closers(fences, opening)
        opening = closing[0] + 1 if closing else len(fences)
    if opening == len(fences):
        return None
    start, marker, language = fences[opening]
    indent = re.match(r"[ \t]*", lines[start])[0]  # of a fence inside a list: the block is indented as much
    lines[start + 1 :] = [line.removeprefix(indent) for line in lines[start + 1 :]]
    closers = [fences[k][0] for k in _closers(fences, opening)]
    if not closers and not language:  # a single bare fence: closing if a program precedes it, opening otherwise
        before = _bare_program(lines[:start])
        if before is not None:
            return before
    candidates = ["\n".join(lines[start + 1 : end]) for end in [*closers, len(lines)]]
    unfinished = candidates[-1].split(marker)[0]  # a closing fence that is not alone on its line
    program = next((c for c in [*candidates, unfinished] if _parses(c)), candidates[0])
    if program.strip():
        return program + "\n"
    return extract_program("\n".join(lines[closers[0] + 1 :])) if closers else None


def _closers(fences: list[tuple[int, str, str]], opening: int) -> list[int]:
    """Return the indices of the fences that could close the one at `opening`."""
    marker = fences[opening][1]
    later = range(opening + 1, len(fences))
    return [k for k in later if fences[k][1][0] == marker[0] and len(fences[k][1]) >= len(marker) and not fences[k][2]]


def _bare_program(lines: list[str]) -> str | None:
    program = "\n".join(lines)
    looks_like_code = any(re.match(r"\s*(import |from \w[\w.]* import |\w+ *= )", line) for line in lines)
    return program + "\n" if looks_like_code and _parses(program) else None


def _parses(program: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a policy's program is not our warning
            ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
