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
ANSWER = "\n### Answer\n"  # separates prompt and response where a tokenizer has no chat template


@dataclass(frozen=True)
class Attempt:
    """An earlier program of a task: what an improvement prompt shows."""

    program: str
    output: str  # tail of what it printed, or of its traceback
    score: float | None  # normalised score on the reward split; None when it failed


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
    columns = [("Numeric", s.numeric), ("Text", s.text), ("Categorical", s.categorical)]
    return [
        f"Task {task.name}: {s.problem}, metric {task.metric}",
        f"Files {s.train_file} {s.test_file} {s.sample_file}",
        *(f"{kind} {' '.join(names)}" for kind, names in columns if names),
        f"Submission submission.csv: {s.id_column} {' '.join(s.target_columns)} as {s.prediction}",
        f"Limits {task.time_limit_s:g} s {memory_gib:g} GiB, {PACKAGES}",
    ]


def _full_lines(task: Task, memory_gib: float) -> list[str]:
    s = task.schema
    direction = "higher" if task.higher_is_better else "lower"
    sample = (task.public_dir / s.sample_file).read_text().splitlines()[:3]
    return [
        f"# Task: {task.name}", task.description.strip(), "",
        f"Metric: {task.metric} ({direction} is better).",
        "Files in the working directory:", *_preview(task), "",
        f"Write your predictions for {s.test_file} to submission.csv, in the format of {s.sample_file}:", *sample, "",
        f"Limits: {task.time_limit_s:g} s, {memory_gib:g} GiB of memory, one core, no network. Packages: {PACKAGES}.",
        "Write a short plan, then one complete Python program in a ```python block.",
    ]  # fmt: skip


@functools.lru_cache(maxsize=16)  # two files are read and parsed; the same for every prompt of a task
def _preview(task: Task) -> list[str]:
    """List each table with its rows, columns, dtypes, and the first row, cells cut at 40 characters."""
    lines = []
    for name in (task.schema.train_file, task.schema.test_file):
        path = task.public_dir / name
        table = pd.read_json(path) if path.suffix == ".json" else pd.read_csv(path)
        lines.append(f"- {name}: {len(table)} rows")
        first = table.iloc[0]
        lines += [f"    {c} ({table[c].dtype}): {str(first[c])[:40]!r}" for c in table.columns]
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
