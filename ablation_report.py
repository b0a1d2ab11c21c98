"""Report of an ablation (ablate.py): numbers with standard errors over seeds, differences paired by seed, learning curves.

    write_report(folder, metric, {("full", 0): config, ...}, missing=0)     # ablation.json, ablation.md, ablation.png

Variants are compared by the *reward without milestones*: what each program would have earned if failed ones got no credit for
milestones. The reward that was trained on is no measure there: a variant without milestone prints has none to be credited.
"Half" and "full budget" are means over a fifth of the steps, around the middle one and at the end.
"""

import json
import statistics
from pathlib import Path

import numpy as np

from checkpoint import UsageError, write_atomically
from config import Config
from curves import read_lines, read_metrics
from results import mean_and_error
from tasks import Metric

COLUMNS = {  # of the table: (heading, decimals)
    "reward_half": ("reward without milestones, half budget", 3),
    "reward_full": ("reward without milestones, full budget", 3),
    "scratch_half": ("of prompts from scratch, half budget", 3),
    "scratch_full": ("of prompts from scratch, full budget", 3),
    "trained_reward_full": ("reward as trained, full budget", 3),
    "valid_frac": ("valid fraction", 3),
    "best_score": ("best score", 4),
    "duration_s": ("mean Δt, s", 3),
    "seconds": ("wall-clock, s", 0),
}
PANELS = {"reward": "reward without milestones", "valid_frac": "valid fraction", "duration_s": "mean Δt (s)",
          "best_score": "best score so far"}  # fmt: skip


def read_curves(run_dir: Path, higher_is_better: bool) -> dict[str, np.ndarray]:
    """Return one number per step, under the names below.

    reward: without milestones; scratch: that of the programs which were not to improve an earlier one, NaN in a step without
    any; best_score: the best so far, NaN before the first valid program; seconds: of collecting and learning, cumulated, so
    that a resumed run counts what it did and not how long it lay.
    """
    metrics = read_metrics(run_dir)
    totals: dict[int, list[float]] = {}
    scratch: dict[int, list[float]] = {}
    for episode in read_lines(run_dir / "episodes.jsonl"):
        reward = reward_without_milestones(episode["reward"])
        totals.setdefault(episode["step"], []).append(reward)
        if episode["kind"] == "scratch":
            scratch.setdefault(episode["step"], []).append(reward)
    if lost := [record["step"] for record in metrics if record["step"] not in totals]:
        raise UsageError(f"{run_dir}: episodes.jsonl has no step {lost[0]}: remove the folder to make the run anew")
    best = [record.get("rollout/score_best", np.nan) for record in metrics]
    return {
        "reward": np.array([statistics.fmean(totals[record["step"]]) for record in metrics]),
        "scratch": np.array([statistics.fmean(scratch.get(record["step"], [np.nan])) for record in metrics]),
        "trained_reward": np.array([record["reward/mean"] for record in metrics]),
        "valid_frac": np.array([record["rollout/valid_frac"] for record in metrics]),
        "duration_s": np.array([record["duration/mean_s"] for record in metrics]),
        "best_score": (np.fmax if higher_is_better else np.fmin).accumulate(best),
        "seconds": np.cumsum([record["time/collect_s"] + record["time/update_s"] for record in metrics]),
    }


def reward_without_milestones(reward: dict) -> float:
    """Return what an episode would have earned without credit for milestones; `partial` is in the total of failed ones only."""
    return reward["total"] - (reward["partial"] if reward["score"] is None else 0.0)


def windows(steps: int) -> tuple[slice, slice]:
    """Return where a run of so many steps is looked at, as places in a curve: around half of its budget, and at its end."""
    width = max(1, round(steps / 5))
    first = max(0, (steps + 1) // 2 - 1 - (width - 1) // 2)
    return slice(first, first + width), slice(steps - width, steps)


def summarise_run(curves: dict[str, np.ndarray]) -> dict[str, float]:
    """Return a run's numbers, one for each of COLUMNS; means over the last window, if not said otherwise."""
    half, full = windows(len(curves["reward"]))
    return {
        "reward_half": float(curves["reward"][half].mean()),
        "reward_full": float(curves["reward"][full].mean()),
        "scratch_half": mean_of_known(curves["scratch"][half]),
        "scratch_full": mean_of_known(curves["scratch"][full]),
        "trained_reward_full": float(curves["trained_reward"][full].mean()),
        "valid_frac": float(curves["valid_frac"][full].mean()),
        "best_score": float(curves["best_score"][-1]),  # of all programs
        "duration_s": float(curves["duration_s"][full].mean()),
        "seconds": float(curves["seconds"][-1]),
    }


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the numbers that are none NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def over_seeds(values: list[float]) -> dict[str, float | int | None]:
    """Return mean, standard error and n of the numbers that are none NaN; no error for a single one."""
    known = [x for x in values if x == x]
    mean, error = mean_and_error(known) if known else (None, None)
    return {"mean": mean, "se": error, "n": len(known)}


def compare(numbers: dict[str, dict[int, dict[str, float]]]) -> dict[str, dict]:
    """Return for each variant, of numbers[variant][seed], its means over seeds and those of its differences to `full`.

    The differences are taken seed by seed, over the seeds that both have.
    """
    full, result = numbers.get("full", {}), {}
    for variant, runs in numbers.items():
        pairs = [(run, full[seed]) for seed, run in runs.items() if seed in full]
        result[variant] = {
            "mean": {name: over_seeds([run[name] for run in runs.values()]) for name in COLUMNS},
            "minus_full": {name: over_seeds([run[name] - other[name] for run, other in pairs]) for name in COLUMNS},
        }
    return result


def write_report(folder: Path, metric: Metric, complete: dict[tuple[str, int], Config], missing: int) -> None:
    """Write ablation.json, .md and .png of the complete runs, by (variant, seed); missing: how many are not complete.

    Raises UsageError where the files of a run lack a step.
    """
    curves: dict[str, dict[int, dict]] = {}
    for (variant, seed), config in complete.items():
        run = curves.setdefault(variant, {})[seed] = read_curves(Path(config.run_dir), metric.higher_is_better)
        if len(run["reward"]) < (1 if variant == "sft-only" else config.steps):
            raise UsageError(f"{config.run_dir}: metrics.jsonl lacks steps: remove the folder to make the run anew")
    numbers = {v: {seed: summarise_run(run) for seed, run in runs.items()} for v, runs in curves.items()}
    config = next(iter(complete.values()))
    report = {
        "task": config.task, "metric": metric.name, "higher_is_better": metric.higher_is_better, "steps": config.steps,
        "batch_size": config.batch_size, "missing_runs": missing, "variants": compare(numbers),
    }  # fmt: skip
    for variant, runs in curves.items():
        report["variants"][variant]["seeds"] = numbers[variant]
        report["variants"][variant]["curves"] = {seed: {k: x.tolist() for k, x in run.items()} for seed, run in runs.items()}
    write_atomically(folder / "ablation.json", json.dumps(without_nan(report), indent=1, allow_nan=False) + "\n")
    text = describe(report)
    write_atomically(folder / "ablation.md", text)
    plot(folder / "ablation.png", config.task, metric.name, config.batch_size, curves)
    print(f"{text}\n{folder / 'ablation.md'}, ablation.json, ablation.png", flush=True)


def without_nan(x):
    """Return x, made of dicts, lists and numbers, with None for NaN: JSON has none."""
    if isinstance(x, dict):
        return {key: without_nan(value) for key, value in x.items()}
    if isinstance(x, list):
        return [without_nan(value) for value in x]
    return None if x != x else x


def describe(report: dict) -> str:
    """Return ablation.md."""
    steps, variants = report["steps"], report["variants"]
    end = windows(steps)[1]
    width = end.stop - end.start
    direction = "higher" if report["higher_is_better"] else "lower"
    budget = f"{steps} steps of {report['batch_size']} programs"
    lines = [
        f"# Ablation on {report['task']}: {budget}", "",
        "Mean ± standard error over seeds (n where it is not that of the others; – where there is none). Half and full budget: "
        f"mean over {width} step{'s' if width > 1 else ''}, around half and at the end; valid fraction and Δt at full budget. "
        "Reward without milestones: a failed program gets no credit for milestones, in no variant; compare variants by it, not "
        "by the reward as trained, and where shares of improvement prompts differ, by that of prompts from scratch. "
        f"Best score: {report['metric']} on the reward split, {direction} is better, of all programs of a run. Wall-clock: "
        "collecting and learning. Programs that `restart` drops are not counted. `sft-only` is the "
        "starting policy without training, sampled once: its numbers, its best score too, are of one batch. Seeds vary twin, "
        "sampling and updates, not the warm start.", "",
    ]  # fmt: skip
    if report["missing_runs"]:
        lines += [f"**{report['missing_runs']} runs are not complete and not in here.**", ""]
    lines += table("variant", {variant: parts["mean"] for variant, parts in variants.items()})
    others = {variant: parts["minus_full"] for variant, parts in variants.items() if variant != "full"}
    if "full" in variants and others:
        lines += ["", "Difference to `full`, paired by seed:", "", *table("variant - full", others)]
    return "\n".join(lines) + "\n"


def table(title: str, rows: dict[str, dict]) -> list[str]:
    """Return the lines of a Markdown table."""
    most = max(cell["n"] for cells in rows.values() for cell in cells.values())
    headings = [title, *(heading for heading, _ in COLUMNS.values())]
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    for variant, cells in rows.items():
        texts = []
        for name, (_, decimals) in COLUMNS.items():
            cell = cells[name]
            text = "–" if cell["mean"] is None else f"{cell['mean']:.{decimals}f}"
            text += "" if cell["se"] is None else f" ± {cell['se']:.{decimals}f}"
            texts.append(text + (f" (n={cell['n']})" if 0 < cell["n"] < most else ""))
        lines.append(f"| {variant} | " + " | ".join(texts) + " |")
    return lines


def plot(path: Path, task: str, metric: str, batch_size: int, curves: dict[str, dict[int, dict]]) -> None:
    """Draw learning curves, mean ± standard error over seeds: against programs, and against seconds."""
    from matplotlib.figure import Figure  # here, since only this function needs it and it takes a second to import

    figure = Figure(figsize=(18, 8.5), layout="constrained")
    axes = figure.subplots(2, len(PANELS))
    for number, (variant, runs) in enumerate(curves.items()):
        color = f"C{number}"
        for column, name in enumerate(PANELS):
            ys, seconds = [run[name] for run in runs.values()], [run["seconds"] for run in runs.values()]
            if len(ys[0]) == 1:  # a single batch: a horizontal line
                for axis in axes[:, column]:
                    mean, error = band(np.stack(ys))
                    axis.axhline(mean[0], color=color, linestyle="--", label=variant)
                    axis.axhspan(mean[0] - error[0], mean[0] + error[0], color=color, alpha=0.15, linewidth=0)
                continue
            first = max(s[0] for s in seconds)
            grid = np.linspace(first, max(first, min(s[-1] for s in seconds)), 200)  # seconds that all seeds cover
            by_time = np.stack([np.interp(grid, s, y) for s, y in zip(seconds, ys, strict=True)])
            programs = batch_size * np.arange(1, len(ys[0]) + 1)
            for axis, x, y in ((axes[0, column], programs, np.stack(ys)), (axes[1, column], grid, by_time)):
                mean, error = band(y)
                axis.plot(x, mean, color=color, label=variant)
                axis.fill_between(x, mean - error, mean + error, color=color, alpha=0.15, linewidth=0)
    for column, title in enumerate(PANELS.values()):
        axes[0, column].set_title(f"{title} ({metric})" if "score" in title else title)
        axes[0, column].set_xlabel("programs")
        axes[1, column].set_xlabel("wall-clock of collecting and learning (s)")
    seeds = max(len(runs) for runs in curves.values())
    figure.suptitle(f"{task}: mean ± standard error over {seeds} seed{'s' if seeds > 1 else ''}")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(curves))
    figure.savefig(path, dpi=90)


def band(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over the rows of y (seeds, points); an error of 0 for one seed."""
    error = y.std(axis=0, ddof=1) / len(y) ** 0.5 if len(y) > 1 else np.zeros(y.shape[1])
    return y.mean(axis=0), error
