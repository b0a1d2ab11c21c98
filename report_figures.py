"""The figures of report.py, each as a PNG in a data: URI, drawn for light and dark pages alike."""

import base64
import io
import math

from instrument import MILESTONES

INK = "#8a8f98"  # of axes and words: readable on white and on near-black
COLOURS = ("#3b82f6", "#f97316", "#10b981", "#e5484d", "#a855f7", "#c49a00", "#06a6c2", "#db2777")
STATUSES = {"ok": "#10b981", "error": "#e5484d", "timeout": "#f97316", "oom": "#a855f7", "output_limit": "#c49a00"}
PANELS = (("reward/mean", "mean reward"), ("rollout/valid_frac", "valid fraction"), ("rollout/score_best", "best score"),
          ("policy/kl_ref", "KL from the start (nats)"), ("policy/entropy", "entropy (nats per token)"),
          ("duration/mean_s", "mean Δt (s)"))  # fmt: skip


def _new_figure(rows: int, columns: int, height: float):
    """Return (figure, axes as a flat list) without a background."""
    import matplotlib  # here, since it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    words = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(words, INK) | {"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}
    style |= {"axes.prop_cycle": plt.cycler(color=COLOURS), "axes.grid": True, "grid.color": INK, "grid.alpha": 0.2}
    with plt.rc_context(style):
        figure, axes = plt.subplots(rows, columns, figsize=(10.5, height), layout="constrained", squeeze=False)
    return figure, list(axes.flat)


def _label_steps(axis) -> None:
    axis.set_xlabel("step")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _data_uri(figure) -> str:
    from matplotlib import pyplot as plt

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110, transparent=True)
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def _legend(axis) -> None:
    axis.legend(fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1, 0.5))


def _series(metrics: list[dict], key: str) -> list[float]:
    return [record.get(key, math.nan) for record in metrics]


def draw_curves(metrics: list[dict]) -> str:
    """Draw the learning curves of the metrics that the run has."""
    steps, known = _series(metrics, "step"), {key for record in metrics for key in record}
    panels = [panel for panel in PANELS if panel[0] in known]  # with several tasks there is no best score
    figure, axes = _new_figure(math.ceil(max(1, len(panels)) / 3), 3, 2.6 * math.ceil(max(1, len(panels)) / 3))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    for axis, (key, title) in zip(axes, panels, strict=False):
        axis.plot(steps, _series(metrics, key), marker="." if len(steps) < 20 else "")
        axis.set_title(title)
        _label_steps(axis)
    return _data_uri(figure)


def draw_tasks(metrics: list[dict], names: list[str]) -> str:
    """Draw reward and valid fraction of each task of a run of several."""
    figure, axes = _new_figure(1, 2, 3.2)
    for axis, key, title in zip(axes, ("reward", "valid_frac"), ("mean reward", "valid fraction"), strict=True):
        for i, name in enumerate(names):
            line = ("-", "--", ":")[i // len(COLOURS) % 3]
            axis.plot(_series(metrics, "step"), _series(metrics, f"task/{name}/{key}"), line, label=name, alpha=0.8)
        axis.set_title(title)
        _label_steps(axis)
    _legend(axes[1])
    return _data_uri(figure)


def draw_milestones(metrics: list[dict]) -> str:
    """Draw which share of the programs reaches each milestone."""
    figure, (axis,) = _new_figure(1, 1, 3)
    for name in MILESTONES:
        axis.plot(_series(metrics, "step"), _series(metrics, f"milestone/{name}"), label=name)
    axis.set_ylim(-0.02, 1.02)
    _label_steps(axis)
    _legend(axis)
    return _data_uri(figure)


def draw_statuses(metrics: list[dict]) -> str:
    """Draw how the programs ended, as shares that add up to 1."""
    figure, (axis,) = _new_figure(1, 1, 2.6)
    width = 1.0 if len(metrics) > 1 else 0.3
    bottom = [0.0] * len(metrics)
    for status, colour in STATUSES.items():
        shares = [record.get(f"sandbox/{status}_frac", 0.0) for record in metrics]
        axis.bar(_series(metrics, "step"), shares, width=width, bottom=bottom, color=colour, label=status)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    _label_steps(axis)
    _legend(axis)
    return _data_uri(figure)


def draw_durations(durations: list[tuple[int, float]]) -> str:
    """Draw the distribution of Δt, seconds, in the first and in the last third of the steps; (step, Δt) of each program."""
    figure, (axis,) = _new_figure(1, 1, 2.6)
    steps = sorted({step for step, _ in durations})
    third = max(1, len(steps) // 3)
    values = [max(s, 1e-3) for _, s in durations]
    low, high = math.log10(min(values)), math.log10(max(values) * 1.001)
    bins = [10 ** (low + (high - low) * i / 40) for i in range(41)]
    parts = [("first steps", steps[0], steps[third - 1])]
    parts += [("last steps", steps[-third], steps[-1])] if len(steps) > 1 else []
    for label, first, last in parts:
        chosen = [max(s, 1e-3) for step, s in durations if first <= step <= last]
        share = [1 / len(chosen)] * len(chosen)
        axis.hist(chosen, bins, weights=share, alpha=0.55, label=f"{label}: {first} to {last}")
    axis.set_xscale("log")
    axis.set_xlabel("Δt (s)")
    axis.set_ylabel("share of the programs")
    _legend(axis)
    return _data_uri(figure)
