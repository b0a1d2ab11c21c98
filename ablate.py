"""Compare parts of the method: variants of a run with the same budget of programs and the same seeds; a table and curves.

    nohup python eval.py --ablate random-pizza > ablate.log &          # hours; the same command again goes on, or redraws
    python eval.py --ablate random-pizza,insults --steps 24 --batch-size 32 --seeds 0,1 --variants full,group

Each variant and seed is a run of train.py in <--ablate-dir>/TASK/VARIANT/seed_S, one at a time, with its own train.log. A
complete run is not repeated, an interrupted one is resumed from its newest checkpoint, a failed one is reported and the others
go on. Writes <--ablate-dir>/TASK/ablation.json, ablation.md and ablation.png, see ablation_report.py.

A seed varies the twin, sampling and the updates. The variants of one seed share a secret and so the twin, and their first
samples: differences are paired by seed. The warm start is the same for all variants and seeds (made once, from a seed of its
own): the standard errors say nothing about other warm starts.
"""

import argparse
import fcntl
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from ablation_report import write_report
from checkpoint import UsageError, load_secret, write_atomically
from config import Config, parse_args, run_main
from runlog import episode_metrics
from sandbox import InfraError
from tasks import expand_names, find_task
from train import build_collector, build_sandbox, load_run_tasks, load_start, open_run, prepare, set_threads

ARTICLE = ["--collect", "restart", "--duration-weight", "mean"]
VARIANTS = {  # flags of train.py
    "full": ARTICLE,
    "no-duration-weight": ["--collect", "restart", "--duration-weight", "none"],
    "no-instrumentation": [*ARTICLE, "--instrumenter", "none"],
    "no-improvement": [*ARTICLE, "--improve-frac", "0"],
    "group": [*ARTICLE, "--advantage", "group"],
    "default": [],
    "sft-only": [],  # the starting policy, sampled once: sample_start
}
HERE = Path(__file__).parent
TRAIN, SAMPLE = ([sys.executable, str(HERE / name)] for name in ("train.py", "ablate.py"))  # commands
Planned = tuple[list[str], Config]  # a run: flags of train.py, and what they mean
TAIL = 12  # lines of a failed run's log that are shown


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of eval.py --ablate."""
    group = parser.add_argument_group("ablation", "trains variants of a task; for the background: nohup python eval.py ... &")
    group.add_argument("--ablate", metavar="TASK[,TASK]", help="compare the variants on these tasks (all: the twelve)")
    group.add_argument("--variants", help=f"with --ablate: which, with commas ({','.join(VARIANTS)})")
    group.add_argument("--seeds", help="with --ablate: seeds, whole numbers with commas (0,1,2)")
    group.add_argument("--steps", type=int, help="with --ablate: PPO steps of each run (train.py's default)")
    group.add_argument("--batch-size", type=int, help="with --ablate: programs per step (train.py's default)")
    group.add_argument("--sandboxes", type=int, help="with --ablate: programs run at once (train.py's default, with restart "
                       "half of the cores: one sandbox drops nothing, and there is no bias to correct)")  # fmt: skip
    group.add_argument("--ablate-dir", type=Path, help="with --ablate: folder of the runs and the report (runs/ablate)")


def main(args: argparse.Namespace) -> int | None:
    """Run eval.py --ablate; return the exit code, or None where it was not asked for. Raises UsageError."""
    if args.ablate is None:
        for name in ("variants", "seeds", "steps", "batch_size", "sandboxes", "ablate_dir"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} goes with --ablate TASK")
        return None
    if args.runs or args.zero_shot is not None:
        raise UsageError("--ablate makes runs of its own: leave out the folder of a run and --zero-shot")
    try:
        tasks = expand_names(args.ablate)
    except ValueError as error:
        raise UsageError(f"--ablate {args.ablate}: {error}") from error
    variants, seeds = split_variants(args.variants), split_seeds(args.seeds)
    given = {"--steps": args.steps, "--batch-size": args.batch_size, "--sandboxes": args.sandboxes, "--model": args.model,
             "--data-dir": args.data_dir}  # fmt: skip
    shared = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
    root = args.ablate_dir or Path("runs/ablate")
    plans = {task: build_plan(root / Path(task).stem, task, variants, seeds, shared) for task in tasks}
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError as error:
        raise UsageError(f"--ablate-dir {root} cannot be written ({error}); name another folder") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the run in progress is saved
    failed = []
    try:
        for task, plan in plans.items():
            failed += run_plan(plan)
            try:
                report(root / Path(task).stem, task, plan, variants)
            except UsageError as error:  # a run that was complete has lost something; the other tasks go on
                failed.append(f"no report of {task}: {error}")
    except KeyboardInterrupt:
        failed.append("interrupted: the run in progress has saved; the same command goes on")
    for reason in failed:
        print(f"eval.py: {reason}", file=sys.stderr)
    return 1 if failed else 0


def report(folder: Path, task: str, plan: list[Planned], variants: list[str]) -> None:
    """Write the report of a task's complete runs, if there are any."""
    done = sorted((c for _, c in plan if is_complete(c)), key=lambda config: variants.index(variant_of(config)))
    complete = {(variant_of(config), config.seed): config for config in done}
    if complete:
        write_report(folder, find_task(task).METRIC, complete, missing=len(plan) - len(complete))


def split_variants(text: str | None) -> list[str]:
    """Return the variants of --variants, all by default. Raises UsageError."""
    names = list(dict.fromkeys(text.split(","))) if text is not None else list(VARIANTS)
    if unknown := [name for name in names if name not in VARIANTS]:
        raise UsageError(f"--variants {text}: unknown variant {unknown[0]!r}; the variants are {', '.join(VARIANTS)}")
    return names


def split_seeds(text: str | None) -> list[int]:
    """Return the seeds of --seeds. Raises UsageError."""
    try:
        return list(dict.fromkeys(int(word) for word in (text if text is not None else "0,1,2").split(",")))
    except ValueError as error:
        raise UsageError(f"--seeds {text}: whole numbers with commas are needed, as in 0,1,2") from error


def build_plan(folder: Path, task: str, variants: list[str], seeds: list[int], shared: list[str]) -> list[Planned]:
    """Return every run of one task, seed by seed. Raises UsageError for what train.py would refuse."""
    plan = []
    for seed in seeds:
        for variant in variants:
            run_dir = folder / variant / f"seed_{seed}"
            flags = ["--task", task, "--seed", str(seed), "--run-dir", str(run_dir), *shared, *VARIANTS[variant]]
            config = parse_args(flags)[0]
            refuse_other_settings(config)
            plan.append((flags, config))
    with tempfile.TemporaryDirectory() as scratch:
        load_run_tasks(plan[0][1], Path(scratch), "reward")  # are the data there?
    return plan


def refuse_other_settings(config: Config) -> None:
    """Raise UsageError where the folder of a run already holds one with other settings."""
    path, expected = Path(config.run_dir) / "config.json", asdict(config)
    if not path.exists():
        return
    try:
        stored = json.loads(path.read_text())
        changed = [name for name in stored if name != "run_dir" and stored[name] != expected.get(name)]
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): delete that run, or name another --ablate-dir") from error
    if changed:
        name = changed[0]
        raise UsageError(f"{config.run_dir} holds a run with {name} {stored[name]}, not {expected.get(name)}: ask for that, "
                         "delete the run, or name another --ablate-dir")  # fmt: skip


def variant_of(config: Config) -> str:
    return Path(config.run_dir).parent.name


def is_complete(config: Config) -> bool:
    """Tell whether a run has done all of its steps."""
    run_dir = Path(config.run_dir)
    if variant_of(config) == "sft-only":
        return (run_dir / "metrics.jsonl").exists()  # written last
    latest = run_dir / "latest"
    return latest.exists() and latest.read_text().strip() == f"step_{config.steps}"


def run_plan(plan: list[Planned]) -> list[str]:
    """Make or go on with the runs that are not complete, one at a time; return a line for each that failed."""
    failed = []
    for number, (flags, config) in enumerate(plan, 1):
        run_dir = Path(config.run_dir)
        if is_complete(config):
            print(f"[{number}/{len(plan)}] {run_dir}: complete", flush=True)
            continue
        resumes = (run_dir / "latest").exists()
        command = [*(SAMPLE if variant_of(config) == "sft-only" else TRAIN)]
        command += ["--resume", str(run_dir)] if resumes else flags
        print(f"[{number}/{len(plan)}] {run_dir}: {'goes on' if resumes else 'starts'}", flush=True)
        share_secret(config)
        code = run_logged(command, run_dir / "train.log")
        if code != 0 or not is_complete(config):
            tail = (run_dir / "train.log").read_text(errors="replace").splitlines()[-TAIL:]
            print("\n".join([f"{run_dir} failed with exit code {code}; the end of its train.log:", *tail]), flush=True)
            failed.append(f"{run_dir} failed (exit code {code}, see train.log there); the same command tries it again")
    return failed


def share_secret(config: Config) -> None:
    """Give a new run the secret of its task and seed, so that the variants have the same twin."""
    run_dir = Path(config.run_dir)
    shared = run_dir.parent.parent / "twins" / run_dir.name
    for folder in (shared, run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    if not (run_dir / "secret").exists():
        write_atomically(run_dir / "secret", load_secret(shared).hex(), mode=0o600)


def run_logged(command: list[str], log: Path) -> int:
    """Run a command, its output appended to a log, and return its exit code; Ctrl-C waits until it has saved.

    The log is locked while a process that was started here lives, this one or the command: -1 where another holds it.
    """
    with open(log, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the open file, which the command inherits
        except BlockingIOError:
            print(f"{log.parent} is in the hands of another process", flush=True)
            return -1
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise


def sample_start(argv: list[str]) -> int:
    """Sample the policy that training would start from, one batch, and write its metrics and episodes; flags of train.py."""
    config = parse_args(argv)[0]
    set_threads(config)
    run_dir = open_run(config, is_new=True)
    write_atomically(run_dir / "config.json", json.dumps(asdict(config), indent=2) + "\n")
    tasks = load_run_tasks(config, run_dir, config.reward_split)
    policy = prepare(config, load_start(config, tasks))
    with build_sandbox(config) as sandbox:
        collector = build_collector(config, tasks, sandbox, load_secret(run_dir), policy)
        started = time.monotonic()
        episodes = collector.collect(policy, range(config.batch_size))
        seconds = time.monotonic() - started
    if not episodes:
        raise InfraError("every program ended in an infra_error: is the disk full, are processes limited?")
    metrics = episode_metrics(episodes, tasks, config.batch_size, 0) | {"time/collect_s": seconds, "time/update_s": 0.0}
    lines = [json.dumps({"step": 1, **episode.record()}) + "\n" for episode in episodes]
    write_atomically(run_dir / "episodes.jsonl", "".join(lines))
    write_atomically(run_dir / "metrics.jsonl", json.dumps({"step": 1, **metrics}) + "\n")
    return 0


if __name__ == "__main__":  # for --ablate: the variant sft-only
    run_main(sample_start, "run the same command again")
