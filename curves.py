"""The curves of a run, drawn from <run>/metrics.jsonl."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from checkpoint import UsageError


def load_pyplot():
    """Return matplotlib's pyplot, without a display. Only figures need it, and it takes a second to import."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def read_lines(path: Path) -> Iterator[dict]:
    """Yield the records of a .jsonl file; none if it is not there. Half a last line, of a run that goes on, is left out.

    Raises UsageError for a line that is no record with a step.
    """
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):
                return
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                    raise ValueError("an object with a step is needed")
            except ValueError as error:
                raise UsageError(f"{path}, line {number} is no record ({error}): did train.py write it?") from error
            yield record


def read_metrics(run_dir: Path) -> list[dict]:
    """Return the records of the finished steps. Raises UsageError when there are none."""
    records = list(read_lines(run_dir / "metrics.jsonl"))
    if not records:
        raise UsageError(f"{run_dir} has no finished step: there is nothing to evaluate or to report yet")
    return records


def plot_curves(run_dir: Path) -> Path:
    """Draw <run>/curves.png from metrics.jsonl: reward, valid fraction, mean Δt, milestone frequencies."""
    plt = load_pyplot()
    records = read_metrics(run_dir)
    steps = [r["step"] for r in records]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharex=True, layout="constrained")
    panels = (("reward/mean", "mean reward"), ("rollout/valid_frac", "valid fraction"), ("duration/mean_s", "mean Δt (s)"))
    for axis, (key, label) in zip(axes.flat, panels, strict=False):
        axis.plot(steps, [r.get(key, math.nan) for r in records])
        axis.set_title(label)
    for key in [k for k in records[0] if k.startswith("milestone/") and k != "milestone/mean"]:
        axes[1, 1].plot(steps, [r.get(key, math.nan) for r in records], label=key.removeprefix("milestone/"))
    axes[1, 1].set_title("share of programs that reach a milestone")
    axes[1, 1].legend(fontsize=7)
    for axis in axes[1]:
        axis.set_xlabel("step")
    path = run_dir / "curves.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
