"""Compare the starting and the trained policy of a run under one protocol.

    python eval.py runs/random-pizza --samples 128

Both policies write n programs from the same prompts with the same random numbers. Each program is run against the reward
split ("val"); those that are valid there are run once more against the private test split. The best of k is chosen by its
score on val and reported by its score on test. A failed program has no score: if all k fail, the score of a constant
prediction is counted. Writes <run>/eval.json, <run>/selected.py, <run>/curves.png and prints a table.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, see train.py

import argparse
import json
import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from checkpoint import UsageError, latest_checkpoint, load_checkpoint_policy, load_secret, write_atomically
from config import Config, resolve, run_main, usage_error
from model import Policy
from ranks import device
from reward import Reward, grade
from robust import evaluate_robustness
from rollout import Collector, Episode
from sandbox import InfraError
from tasks import Task
from train import build_collector, build_sandbox, load_run_tasks, load_start, set_threads


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased probability that one of k programs is valid when c of n were (Codex, 2107.03374).

    Raises ValueError for k > n.
    """
    if not 0 < k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} needs 0 < k <= n and 0 <= c <= n; n is {n}, c is {c}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def expected_best_of_k(chosen_by: list, reported: list[float], k: int) -> float:
    """Return E[reported score of the sample that is best by `chosen_by` among k of n], exactly.

    Σ_i s_(i) C(i-1, k-1) / C(n, k), s the reported scores in ascending order of chosen_by. Ties are kept in the order given.
    Raises ValueError for k > n.
    """
    n = len(chosen_by)
    if not 0 < k <= n:
        raise ValueError(f"best of {k} needs at least that many samples; there are {n}")
    order = sorted(range(n), key=lambda i: (chosen_by[i], i))
    return sum(reported[i] * (math.comb(rank, k - 1) / math.comb(n, k)) for rank, i in enumerate(order))


def run_on_test(collector: Collector, task: Task, episodes: list[Episode]) -> list[float | None]:
    """Return the raw score on the private test split of each program that is valid on val; None for the others."""
    futures = [
        collector.sandbox.submit(
            e.program, task.public_dir, time_limit_s=task.time_limit_s, seed=collector.sample_seed(e.index)
        )
        if e.reward.score is not None
        else None
        for e in episodes
    ]
    # reward.grade: a fault of ours ends the evaluation, it is never counted as the program's
    return [None if future is None else grade(task, future.result())[0] for future in futures]


def evaluate_policy(policy: Policy, collector: Collector, test_task: Task | None, n: int) -> tuple[dict, str | None]:
    """Return the statistics of n programs on val (and test) of the collector's task, and the program that is best on val."""
    episodes = collector.collect(policy, range(n))
    if not episodes:
        raise InfraError("no program could be run")
    result = {"n": len(episodes), "mean_reward": statistics.fmean(e.reward.total for e in episodes)}
    val = [e.reward.score for e in episodes]
    order = [order_of(collector.tasks[0], e.reward) for e in episodes]
    result["val"] = summarise(collector.tasks[0], order, val)
    if test_task is not None:
        result["test"] = summarise(test_task, order, run_on_test(collector, test_task, episodes))
    best = episodes[best_index(order)]
    return result, best.program if best.reward.score is not None else None


def order_of(task: Task, reward: Reward) -> tuple[float, float]:
    """Return what the samples are ordered by: the reward, as a penalised program may not be chosen; then the score.

    Rewards are clipped: of programs that are worse than the worst score of the scale, the one with the best score is best.
    """
    if reward.score is None:
        return reward.total, -math.inf
    return reward.total, reward.score if task.higher_is_better else -reward.score


def best_index(order: list) -> int:
    """Return the index of the largest; of equal ones the last, as expected_best_of_k has it."""
    return max(range(len(order)), key=lambda i: (order[i], i))


def summarise(task: Task, order: list, scores: list[float | None]) -> dict:
    """Return valid fraction, mean, median and best of the valid scores, and the expected best of k."""
    n, valid = len(scores), [s for s in scores if s is not None]
    filled = [task.baseline if s is None else s for s in scores]
    ks = [k for k in (2**i for i in range(20)) if k < n] + [n]
    return {
        "valid_frac": len(valid) / n,
        "mean": statistics.fmean(valid) if valid else None,
        "median": statistics.median(valid) if valid else None,
        "best": filled[best_index(order)],
        "best_of_k": {str(k): expected_best_of_k(order, filled, k) for k in ks},
        "valid_at_k": {str(k): pass_at_k(n, len(valid), k) for k in ks},
    }


def table(result: dict) -> str:
    """Lay the two policies out side by side."""
    start, trained = result["start"], result["trained"]
    what = f"{result['task']} ({result['data']} data), {result['metric']}"
    lines = [
        f"{what}, {start['n']} programs each, temperature {result['temperature']}",
        f"{'':24s} {'start':>9s} {'trained':>9s}",
    ]
    lines.append(_row("mean reward", start["mean_reward"], trained["mean_reward"]))
    for split in [s for s in ("val", "test") if s in start]:
        a, b = start[split], trained[split]
        rows = [("valid", "valid_frac"), ("mean of valid", "mean"), ("median of valid", "median"), ("chosen by val", "best")]
        lines += [_row(f"{split} {label}", a[key], b[key]) for label, key in rows]
        shared = [k for k in a["best_of_k"] if k in b["best_of_k"]]
        lines += [_row(f"{split} best of {k}", a["best_of_k"][k], b["best_of_k"][k]) for k in shared]
    return "\n".join(lines)


def _row(label: str, a: float | None, b: float | None) -> str:
    return f"{label:24s} " + " ".join("        –" if x is None else f"{x:9.4f}" for x in (a, b))


def read_metrics(run_dir: Path) -> list[dict]:
    """Return the records of the finished steps. Raises UsageError when there are none."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]  # a killed run leaves half a line
    if not records:
        raise UsageError(f"{run_dir} has no finished step: there is nothing to evaluate")
    return records


def plot_curves(run_dir: Path) -> Path:
    """Draw <run>/curves.png from metrics.jsonl: reward, valid fraction, mean Δt, milestone frequencies."""
    import matplotlib  # here, since only this function needs it and it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    records = read_metrics(run_dir)
    steps = [r["step"] for r in records]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex=True, layout="constrained")
    panels = (("reward/mean", "mean reward"), ("rollout/valid_frac", "valid fraction"), ("duration/mean_s", "mean Δt (s)"))
    for axis, (key, label) in zip(axes.flat, panels, strict=False):
        axis.plot(steps, [r[key] for r in records])
        axis.set_title(label)
    for key in [k for k in records[0] if k.startswith("milestone/") and k != "milestone/mean"]:
        axes[1, 1].plot(steps, [r[key] for r in records], label=key.removeprefix("milestone/"))
    axes[1, 1].set_title("share of programs that reach a milestone")
    axes[1, 1].legend(fontsize=7)
    for axis in axes[1]:
        axis.set_xlabel("step")
    path = run_dir / "curves.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def evaluate_run(run_dir: Path, samples: int, split: str) -> None:
    """Evaluate both policies of a run on each of its tasks; write eval.json, the selected programs and curves.png."""
    try:
        config = Config(**json.loads((run_dir / "config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{run_dir} has no readable config.json ({error}); name the folder of a run") from error
    checkpoint = latest_checkpoint(run_dir)
    read_metrics(run_dir)  # before the work of minutes
    set_threads(config)
    val_tasks = load_run_tasks(config, run_dir, "reward")
    test_tasks = load_run_tasks(config, run_dir, "test") if split == "test" else [None] * len(val_tasks)
    results = [{"task": t.name, "data": t.data, "metric": t.metric, "temperature": config.temperature} for t in val_tasks]
    instruments = config.instrumenter == "lm"
    reference = load_checkpoint_policy(run_dir / "step_0", device()).requires_grad_(False) if instruments else None
    with build_sandbox(config) as sandbox:
        collector = build_collector(config, val_tasks, sandbox, load_secret(run_dir), reference)
        for name, directory in (("start", run_dir / "step_0"), ("trained", checkpoint)):
            policy = load_checkpoint_policy(directory, device())
            for val_task, test_task, result in zip(val_tasks, test_tasks, results, strict=True):
                print(f"{name}: {samples} programs for {val_task.name} from {directory} ...", flush=True)
                single = replace(collector, tasks=[val_task], seed=f"{config.seed}/eval", improve_frac=0.0)
                result[name], result["selected"] = evaluate_policy(policy, single, test_task, samples)
    for result in results:
        selected, suffix = result.pop("selected"), f"_{result['task']}" if len(results) > 1 else ""
        print(f"\nThe trained policy's program that is best on val:\n\n{selected or '(none is valid)'}")
        if selected:
            write_atomically(run_dir / f"selected{suffix}.py", selected)
        print(table(result))
    written = results[0] if len(results) == 1 else {"tasks": results}
    write_atomically(run_dir / "eval.json", json.dumps(written, indent=2) + "\n")
    print(f"\nall numbers: {run_dir / 'eval.json'}\ncurves: {plot_curves(run_dir)}")


def evaluate_zero_shot(name: str, model: str | None, data_dir: str | None, samples: int) -> None:
    """Say whether a policy that was not trained on a task writes at least one valid program: is it worth training on?"""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # as a run's: programs of another user then follow links to images, else these are copied
        config = resolve(Config(task=name, model=model, data_dir=data_dir, run_dir=folder, improve_frac=0.0))
        set_threads(config)
        tasks = load_run_tasks(config, Path(folder), "reward")
        policy = load_start(config, tasks)
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
    parser.add_argument("run", type=Path, nargs="?", help="folder of a run")
    parser.add_argument("--zero-shot", metavar="TASK", help="instead of a run: is a program of the untrained policy valid?")
    parser.add_argument("--model", help="with --zero-shot: as in train.py")
    parser.add_argument("--data-dir", help="with --zero-shot: as in train.py")
    parser.add_argument("--samples", type=int, default=128, help="programs per policy (128)")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="val leaves the private split alone (test)")
    parser.add_argument("--robust", action="store_true", help="instead: what is lost when the task is presented differently")
    parser.add_argument("--repeats", type=int, help="with --robust: answers to each of the --samples prompts (3)")
    parser.add_argument("--held-out", metavar="TASK", help="with --robust: a task not trained on (the first of the others)")
    args = parser.parse_args(argv)
    if args.samples < 1:
        raise UsageError(f"--samples {args.samples} must be positive")
    if (args.run is None) == (args.zero_shot is None):
        raise UsageError("give either the folder of a run or --zero-shot TASK")
    if args.run is not None and (args.model is not None or args.data_dir is not None):
        raise UsageError("--model and --data-dir go with --zero-shot: a run is evaluated with its own")
    if args.robust and args.run is None:
        raise UsageError("--robust needs the folder of a run")
    if not args.robust and (args.repeats is not None or args.held_out is not None):
        raise UsageError("--repeats and --held-out go with --robust")
    if args.robust:
        evaluate_robustness(args.run, args.samples, args.repeats, args.held_out)
    elif args.zero_shot is not None:
        evaluate_zero_shot(args.zero_shot, args.model, args.data_dir, args.samples)
    else:
        evaluate_run(args.run, args.samples, args.split)
    return 0


if __name__ == "__main__":
    run_main(main, "nothing of the run was changed, run eval.py again")
