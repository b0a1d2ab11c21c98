"""Look at the tasks, write one to disk, grade a submission.

    python -m tasks list
    python -m tasks show random-pizza
    python -m tasks make random-pizza pizza/ --seed 1         pizza/reward, pizza/test: public; pizza/private: answers
    python -m tasks grade random-pizza submission.csv --answers pizza/
    python -m tasks prepare random-pizza random-acts-of-pizza.zip DATA    a raw Kaggle download → MLE-bench's layout
    python -m tasks grade random-pizza submission.csv --data-dir DATA     real data: score and medal on the private test

TASK is a name, a name of MLE-bench or the path of a task's Python file. grade prints one JSON object, {"valid": true,
"score": s} or {"valid": false, "reason": r}. Exit codes: 0 done (an invalid submission is a result), 2 bad arguments, 1
anything else.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import pandas as pd

from tasks import SPLITS, find_task, load_task, raw, read_published, task_names
from tasks.grading import GraderFault, InvalidSubmission, read_submission_file
from tasks.medals import award


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> None:
        self.exit(2, f"error: {message}; see `python -m tasks --help`\n")


def parse_args(arguments: list[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = Parser(prog="python -m tasks", description=__doc__.splitlines()[0], allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names, MLE-bench ids and metrics")
    show = commands.add_parser("show", help="description, columns and published results of a task")
    make = commands.add_parser("make", help="write a twin, with its answers, to an empty directory", allow_abbrev=False)
    grade = commands.add_parser("grade", help="grade a submission against the answers of `make`", allow_abbrev=False)
    prepare = commands.add_parser("prepare", help="turn a raw Kaggle download into MLE-bench's layout", allow_abbrev=False)
    for command in (show, make, grade, prepare):
        command.add_argument("task")
    make.add_argument("directory", type=Path)
    make.add_argument("--seed", type=int, default=0, help="number that the draw depends on (default 0)")
    make.add_argument("--rows", type=int, help="number of training rows (default: the task's own)")
    make.add_argument("--salt", type=hexadecimal, default=b"", metavar="HEX", help="secret bytes (default: none)")
    grade.add_argument("submission", type=Path)
    truth = grade.add_mutually_exclusive_group(required=True)
    truth.add_argument("--answers", type=Path, metavar="DIR", help="the directory that `make` filled")
    truth.add_argument("--data-dir", type=Path, metavar="DIR", help="real data in MLE-bench's layout")
    grade.add_argument("--split", choices=SPLITS, default="test", help="which rows it predicts (default test)")
    prepare.add_argument("source", type=Path, metavar="RAW_DIR", help="the downloaded zip archive, or a folder of it")
    prepare.add_argument("data_dir", type=Path, metavar="OUT_DIR", help="what --data-dir will be; gets OUT_DIR/<id>/prepared")
    return parser.parse_args(arguments)


def hexadecimal(text: str) -> bytes:
    """Return the bytes that pairs of hexadecimal digits stand for. Raises ValueError."""
    return bytes.fromhex(text)


def list_tasks() -> None:
    """Print one line per task."""
    for name in task_names():
        task = find_task(name)
        print(f"{name:24} {task.ID or '-':48} {task.METRIC.name}")


def show_task(name: str) -> None:
    """Print what there is to know about a task."""
    task = find_task(name)
    direction = "higher" if task.METRIC.higher_is_better else "lower"
    print(f"{task.NAME} (MLE-bench: {task.ID or 'none'})\nmetric: {task.METRIC.name}, {direction} is better")
    print(f"time limit: {task.TIME_LIMIT_S:g} s\n\n{task.DESCRIPTION}")
    for table in ("thresholds.csv", "published.csv"):
        row = read_published(table, task.ID)
        if row:
            print(f"{table} (real data): " + ", ".join(f"{key} {value:g}" for key, value in row.items()))


def make_task(name: str, directory: Path, seed: int, salt: bytes, rows: int | None) -> None:
    """Write both splits' public files and, apart from them, the answers.

    Raises ValueError for a directory in use, or a task without twin.
    """
    if not hasattr(find_task(name), "make_twin"):
        raise ValueError(f"{name} has no twin to make; its data are what --data-dir of train.py and of grade reads")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} is not an empty directory: choose a new one, nothing is overwritten")
    tasks = [load_task(name, directory, split, seed=seed, salt=salt, rows=rows) for split in SPLITS]
    private = directory / "private"
    private.mkdir(mode=0o700)
    for task in tasks:
        task.answers.to_csv(private / f"{task.split}.csv", index=False)
        print(f"{task.public_dir}: {len(task.answers)} rows to predict")


def grade_file(name: str, submission: Path, directory: Path, split: str) -> dict:
    """Return the verdict on a submission file. Raises FileNotFoundError for missing answers, GraderFault for bad."""
    task = find_task(name)
    answers = directory / "private" / f"{split}.csv"
    if not answers.is_file():
        raise FileNotFoundError(f"no {answers}: --answers takes the DIR that `python -m tasks make {name} DIR` filled")
    try:
        truth = pd.read_csv(answers, keep_default_na=False)
        return {"valid": True, "score": task.grade(read_submission_file(submission), truth)}
    except InvalidSubmission as error:
        return {"valid": False, "reason": str(error)}
    except (GraderFault, OSError):
        raise
    except Exception as error:  # the answers, and a task's file, may be a user's
        raise GraderFault(f"{answers} are not answers of {name}: {error!r}") from error


def grade_real(name: str, submission: Path, data_dir: Path, split: str) -> dict:
    """Return the verdict on a submission for real data; on the private test split with its medal. Raises as load_task."""
    with tempfile.TemporaryDirectory() as public:
        task = load_task(name, Path(public), split, data_dir=data_dir)
        try:
            score = task.grade(read_submission_file(submission))
        except InvalidSubmission as error:
            return {"valid": False, "reason": str(error)}
        return {"valid": True, "score": score, **(award(task, score) or {})}


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    args = parse_args(arguments)
    try:
        if args.command == "list":
            list_tasks()
        elif args.command == "show":
            show_task(args.task)
        elif args.command == "make":
            make_task(args.task, args.directory, args.seed, args.salt, args.rows)
        elif args.command == "prepare":
            print(raw.prepare(find_task(args.task), args.source, args.data_dir))
        elif args.data_dir is not None:
            print(json.dumps(grade_real(args.task, args.submission, args.data_dir, args.split)))
        else:
            print(json.dumps(grade_file(args.task, args.submission, args.answers, args.split)))
    except GraderFault as error:
        print(f"error: {error}; make the answers again", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
