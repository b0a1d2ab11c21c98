"""Evaluate runs under one protocol: starting policy, trained policy, fixed baselines, and one table over all of them.

    python eval.py runs/random-pizza --samples 128
    python eval.py runs/pizza-0 runs/pizza-1 runs/pizza-2        # seeds of one task: a row of means ± standard errors
    python eval.py --ablate random-pizza          # something else: trains and compares variants, see ablate.py

Both policies write n programs from the same prompts with the same random numbers. Each program is run against the reward
split ("val"); those that are valid there are run once more against the private test split. The best of k is chosen by its
score on val and reported by its score on test. A failed program has no score: if all k fail, the score of a constant
prediction is counted. The baselines of baselines.py go the same way.

Writes <run>/eval.json, <run>/selected.py (of the starting policy selected_start.py), <run>/curves.png, and the table to
results.md, results.csv and results.png. What is finished is in <run>/eval/ (pieces.py): an interrupted evaluation goes on.

Two evaluations of one checkpoint with one seed give the same numbers (durations apart): draws depend on the seed and the index
alone, and programs start from fixed hash and random seeds on one core. What can still differ: a program near its time limit on
a busy machine; one that reads the clock or the system's randomness; and the last digits of the logits (some 1e-6) with another
number of threads, a GPU or other libraries, and with them, rarely, a token. All of these are in what a piece depends on, but
the first two; the checks of the selected programs tell whether a second run gave the same score.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, see train.py

import argparse
import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import ablate
from checkpoint import UsageError, checkpoints_to_evaluate, load_secret, write_atomically
from config import Config, flag, load_config, resolve, run_main, usage_error
from curves import plot_curves, read_metrics
from evaluation import Evaluation, Subject, evaluate_policy
from report_html import visible
from results import table, write_table
from robust import evaluate_robustness
from tasks import expand_names, find_task
from train import build_collector, build_sandbox, load_run_tasks, load_start, prepare, set_threads

# What may differ between runs of one row: the seed, the place, and knobs of memory and speed.
FREE = ("seed", "run_dir", "task", "data_dir", "sample_batch", "micro_batch_tok", "gradient_checkpointing", "sandboxes",
        "threads", "shard", "save_every")  # fmt: skip


def open_subject(run_dir: Path) -> Subject:
    """Return the run in a folder. Raises UsageError if it is none, or has nothing to evaluate."""
    config, checkpoints = load_config(run_dir), checkpoints_to_evaluate(run_dir)
    read_metrics(run_dir)
    try:
        names = [find_task(name).NAME for name in expand_names(config.task)]
    except ValueError as error:
        raise UsageError(f"--task {config.task} of {run_dir}: {error}") from error
    return Subject(run_dir, config, names, checkpoints)


def require_comparable(subjects: list[Subject]) -> None:
    """Raise UsageError for runs of one task that cannot share a row of the table: it is a mean over seeds and nothing else."""
    for i, one in enumerate(subjects):
        for other in subjects[:i]:
            a, b = other.config, one.config
            shared = sorted(set(other.names) & set(one.names))
            if not shared or bool(a.data_dir) != bool(b.data_dir):
                continue
            what = f"{other.directory} and {one.directory} are both of {shared[0]}"
            values = {flag(f.name): (getattr(a, f.name), getattr(b, f.name)) for f in fields(Config) if f.name not in FREE}
            values["--task"] = (",".join(other.names), ",".join(one.names))
            values["steps done"] = tuple(subject.checkpoints["trained"].name.removeprefix("step_") for subject in (other, one))
            for name, (first, second) in values.items():
                if first != second:
                    raise UsageError(f"{what}, but {name} is {first} and {second}: a row of the table is a mean over "
                                     "seeds alone; evaluate them one by one")  # fmt: skip
            if a.seed == b.seed:
                raise UsageError(f"{what} and have --seed {a.seed}: a row is a mean over seeds; leave one of them out")


def evaluate_run(evaluation: Evaluation) -> list[dict]:
    """Evaluate a run on each of its tasks; write eval.json, the selected programs and curves.png; return the entries."""
    run_dir, entries = evaluation.subject.directory, evaluation.run()
    for entry in entries:
        selected, suffix = entry.pop("selected"), f"_{entry['task']}" if len(entries) > 1 else ""
        for who, program in selected.items():
            path = run_dir / f"selected{'_start' if who == 'start' else ''}{suffix}.py"
            if program:
                write_atomically(path, program)
                entry["checks"][who]["program"] = path.name
            else:
                path.unlink(missing_ok=True)  # of an earlier evaluation
        print(f"\nThe trained policy's program that is best on val:\n\n{visible(selected['trained'] or '(none is valid)')}")
        print(table(entry))
    written = entries[0] if len(entries) == 1 else {"tasks": entries}
    write_atomically(run_dir / "eval.json", json.dumps(written, indent=2) + "\n")
    print(f"\nall numbers: {run_dir / 'eval.json'}\ncurves: {plot_curves(run_dir)}")
    return [{**entry, "run": str(run_dir)} for entry in entries]


def evaluate_runs(run_dirs: list[Path], samples: int, split: str, out: Path | None, anew: bool) -> None:
    """Evaluate runs and write one table. Raises UsageError, before any work, for folders that are no runs of one table."""
    subjects = [open_subject(run_dir) for run_dir in run_dirs]
    require_comparable(subjects)
    out = out or (run_dirs[0] if len(run_dirs) == 1 else Path("runs/table"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written ({error}); name another folder") from error
    evaluations = [Evaluation(subject, samples, split, anew) for subject in subjects]  # their data are read: all errors show
    entries = [entry for evaluation in evaluations for entry in evaluate_run(evaluation)]
    print(f"\n{write_table(entries, out)}\ntable: {out / 'results.md'}, results.csv, results.png")


def evaluate_zero_shot(name: str, model: str | None, data_dir: str | None, samples: int) -> None:
    """Say whether a policy that was not trained on a task writes at least one valid program: is it worth training on?"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # as a run's: programs of another user then follow links to images, else these are copied
        config = resolve(Config(task=name, model=model, data_dir=data_dir, run_dir=folder, improve_frac=0.0))
        set_threads(config)
        tasks = load_run_tasks(config, Path(folder), "reward")
        policy = prepare(config, load_start(config, tasks))
        with build_sandbox(config) as sandbox:
            collector = build_collector(config, tasks, sandbox, load_secret(Path(folder)))
            for task in tasks:
                result, _ = evaluate_policy(policy, replace(collector, tasks=[task]), None, samples)
                valid = round(result["val"]["valid_frac"] * result["n"])
                verdict = "can be trained on" if valid else "nothing to start from: more demonstrations, or another model"
                print(f"{task.name}: {valid} of {result['n']} valid, mean reward {result['mean_reward']:.3f}: {verdict}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = usage_error
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="folder of a run; several: one table over them")
    parser.add_argument("--zero-shot", metavar="TASK", help="instead of a run: is a program of the untrained policy valid?")
    parser.add_argument("--model", help="with --zero-shot or --ablate: as in train.py")
    parser.add_argument("--data-dir", help="with --zero-shot or --ablate: as in train.py")
    parser.add_argument("--samples", type=int, default=128, help="programs per policy, the k of the best of k (128)")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="val leaves the private split alone (test)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the table (the only run's, or runs/table)")
    parser.add_argument("--anew", action="store_true", help="use no finished piece of an earlier evaluation")
    parser.add_argument("--robust", action="store_true", help="of one run: what is lost when its task is presented differently")
    parser.add_argument("--repeats", type=int, help="with --robust: answers to each of the --samples prompts (3)")
    parser.add_argument("--held-out", metavar="TASK", help="with --robust: a task not trained on (the first of the others)")
    ablate.add_flags(parser)
    args = parser.parse_args(argv)
    if not args.robust and (args.repeats is not None or args.held_out is not None):
        raise UsageError("--repeats and --held-out go with --robust")
    if args.robust and len(args.runs) != 1:
        raise UsageError("--robust needs the folder of one run")
    if (code := ablate.main(args)) is not None:
        return code
    if args.samples < 1:
        raise UsageError(f"--samples {args.samples} must be positive")
    if bool(args.runs) == (args.zero_shot is not None):
        raise UsageError("give either the folders of runs, --zero-shot TASK or --ablate TASK")
    if args.runs and (args.model is not None or args.data_dir is not None):
        raise UsageError("--model and --data-dir go with --zero-shot: a run is evaluated with its own")
    if (args.zero_shot is not None or args.robust) and (args.out is not None or args.anew):
        raise UsageError("--out and --anew go with the table over runs: leave them out")
    if args.robust:
        evaluate_robustness(args.runs[0], args.samples, args.repeats, args.held_out)
    elif args.zero_shot is not None:
        evaluate_zero_shot(args.zero_shot, args.model, args.data_dir, args.samples)
    else:
        evaluate_runs(args.runs, args.samples, args.split, args.out, args.anew)
    return 0


if __name__ == "__main__":
    run_main(main, "nothing of the run was changed, run eval.py again: it goes on")
