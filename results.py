"""One table over evaluated runs: starting policy, trained policy and fixed baselines, as Markdown, CSV and a figure.

Runs of one task that differ by their seed are one row: mean ± standard error over the seeds. A seed draws a twin of its own,
so baselines vary, too; differences are taken seed by seed. Scores published elsewhere are about real data and stand apart.
"""

import csv
import io
import math
import statistics
from pathlib import Path

from checkpoint import UsageError, write_atomically
from checks import describe_checks
from curves import load_pyplot

POLICIES = ("start", "trained")
BASELINES = ("constant", "linear", "tuned", "demonstrations")
EVERYONE = (*POLICIES, *BASELINES)
WRITERS = (*POLICIES, "demonstrations")  # those who write many programs
PUBLISHED = "published (real data)"
ROUNDING = 1e-9  # a smaller difference is arithmetic: log 3, and what the grader finds for thirds, differ by 2e-16
FEWER = (1, 4, 16, 64)  # programs, of those that were written
ROW_SETTINGS = ("metric", "samples", "split", "temperature", "protocol")  # equal in all results of a row


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error s / √n, s with n - 1; the error of one value is not known: None."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def part_of(result: dict, who: str) -> dict:
    return result[who] if who in POLICIES else result["baselines"][who]


def aggregate(results: list[dict]) -> list[dict]:
    """Return one row per task and kind of data, of the entries of eval.json. Raises UsageError for what cannot be averaged."""
    groups: dict[tuple, list[dict]] = {}
    for result in results:
        groups.setdefault((result["task"], result["data"]), []).append(result)
    return [_row_of(group) for group in groups.values()]


def _row_of(group: list[dict]) -> dict:
    first = group[0]
    for result in group:
        for name in ROW_SETTINGS:
            if result[name] != first[name]:
                raise UsageError(f"{result['task']}: {name} is {first[name]} in {first['run']} and {result[name]} in "
                                 f"{result['run']}: they are not one row; evaluate them alike")  # fmt: skip
    seeds = [result["seed"] for result in group]
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise UsageError(f"two runs of {first['task']} have the seed {twice[0]}: seeds are averaged over; leave one out")
    scores = {who: [part_of(r, who)["reported"]["score"] for r in group] for who in EVERYONE}
    row = {name: first[name] for name in ("task", "data", "higher_is_better", *ROW_SETTINGS)}
    row |= {"seeds": len(group), "results": group, "published": first["published"], "who": {}}
    for who in EVERYONE:
        parts = [part_of(r, who) for r in group]
        best_of_k = [p.get(first["split"], {}).get("best_of_k", {}) if who in WRITERS else {} for p in parts]
        row["who"][who] = {
            "score": _over(scores[who]),
            "best_of_k": {k: [best.get(str(k)) for best in best_of_k] for k in FEWER},  # seed by seed
            "scores": scores[who],
            "normalised": _over([p["reported"]["normalised"] for p in parts]),
            "valid_frac": _over([p.get(first["split"], {}).get("valid_frac") if who in WRITERS else None for p in parts]),
            "mean_reward": _over([p.get("mean_reward") for p in parts]),
        }
    sign = 1 if first["higher_is_better"] else -1
    row["ahead"] = {
        who: _over([None if b is None else sign * (t - b) for t, b in zip(scores["trained"], scores[who], strict=True)])
        for who in ("start", *BASELINES)
    }
    return row


def _over(values: list[float | None]) -> tuple[float, float | None, int] | None:
    """Return (mean, standard error, number) of those that there are."""
    known = [value for value in values if value is not None]
    return (*mean_and_error(known), len(known)) if known else None


def compare(row: dict) -> tuple[list[str], list[str]]:
    """Return what the trained policy beats, and what it does not, each with the difference (positive: trained is better).

    It beats a baseline when the mean of the differences, seed by seed, is above 0 and above its standard error.
    """
    beats, fails = [], []
    for who, ahead in row["ahead"].items():
        if ahead is None:
            continue
        mean, error, n = ahead
        (beats if mean > max(error or 0, ROUNDING) else fails).append(f"{who} ({mean:+.4f}{_pm(error)}{_few(n, row['seeds'])})")
    return beats, fails


def to_markdown(rows: list[dict]) -> str:
    """Return the whole report."""
    programs = " or ".join(sorted({str(row["samples"]) for row in rows}))
    split = {"test": "the private test split", "val": "val itself, which flatters"}[rows[0]["split"]]
    scores = _grid(["task", "data", "metric", "seeds", "programs", *EVERYONE, "medal"], [_score_cells(row) for row in rows])
    head = ["task", *(f"{who}: {what}" for what in ("valid", "mean reward") for who in WRITERS)]
    shares = [[row["task"], *_share_cells(row)] for row in rows]
    lines = [
        "# Results", "",
        f"Scores of the best of {programs} programs, chosen on val, on {split}. ± is the standard error over seeds; each "
        "seed draws a twin of its own, so baselines vary, too. ↑ higher is better, ↓ lower.", "",
        *scores, "", *_grid(head, shares), "",
        "constant: one prediction for all rows; linear, tuned: reference pipelines; demonstrations: as many programs of those "
        "that the warm start imitates, mistakes included, chosen the same way.", "",
        "## Trained against the others", "",
        "Beats: the mean difference over the seeds is above 0 and above its standard error. In brackets the difference; + is "
        "better.", "",
    ]  # fmt: skip
    for row in rows:
        beats, fails = compare(row)
        lines.append(f"- {row['task']}: beats: {', '.join(beats) or 'none'}; does not beat: {', '.join(fails) or 'none'}")
    lines += ["", *_fewer(rows)]
    for result in (result for row in rows for result in row["results"]):
        where = f"- {result['task']}, seed {result['seed']}"
        reasons = {who: result["baselines"][who].get("reason") for who in BASELINES}
        lines += [f"{where}: {who}: {reason}" for who, reason in reasons.items() if reason]
        for who in WRITERS:
            if (n := part_of(result, who).get("n", result["samples"])) != result["samples"]:
                lines.append(f"{where}: {who}: {n} programs only, a fault of ours cost the others; evaluate again")
    return "\n".join([*lines, *_published(rows), *_checks(rows)]) + "\n"


def _score_cells(row: dict) -> list[str]:
    medals = [r["trained"]["reported"]["medal"] for r in row["results"]]
    counts = [f"{name or 'none'} × {medals.count(name)}" for name in dict.fromkeys(medals) if name is not None]
    scores = [_cell(row["who"][who]["score"], row["seeds"]) for who in EVERYONE]
    arrow = "↑" if row["higher_is_better"] else "↓"
    what = [row["task"], row["data"], f"{row['metric']} {arrow}", str(row["seeds"]), str(row["samples"])]
    return [*what, *scores, ", ".join(counts) or "–"]


def _share_cells(row: dict) -> list[str]:
    return [_cell(row["who"][who][key], row["seeds"]) for key in ("valid_frac", "mean_reward") for who in WRITERS]


def _fewer(rows: list[dict]) -> list[str]:
    """Return the table of what is to be expected of the best of fewer programs, and who is ahead how often, seed by seed."""
    head = ["task", *(f"best of {k}" for k in FEWER), "of all"]
    cells, wins = [], {who: [[] for _ in head[1:]] for who in WRITERS if who != "trained"}
    for row in rows:
        columns = [{who: row["who"][who]["best_of_k"][k] for who in WRITERS} for k in FEWER]
        columns.append({who: row["who"][who]["scores"] for who in WRITERS})
        label = row["task"] if row["data"] == "twin" else f"{row['task']} ({row['data']} data)"
        cells.append([label, *(" / ".join(_short(column[who]) for who in WRITERS) for column in columns)])
        sign = 1 if row["higher_is_better"] else -1
        for who, columns_won in wins.items():
            for won, column in zip(columns_won, columns, strict=True):
                pairs = zip(column["trained"], column[who], strict=True)
                if ahead := [sign * (t - other) for t, other in pairs if None not in (t, other)]:
                    won.append(statistics.fmean(ahead) > ROUNDING)
    for who, columns_won in wins.items():
        cells.append([f"trained ahead of {who}", *(f"{sum(won)} of {len(won)}" if won else "–" for won in columns_won)])
    return ["## With fewer programs", "",
            f"{' / '.join(WRITERS)}: expected score of the best of k of the programs, chosen on val; mean over seeds.", "",
            *_grid(head, cells), ""]  # fmt: skip


def _short(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = statistics.fmean(known)
    return (f"{mean:.3f}" if abs(mean) >= 0.1 else f"{mean:.2g}") + _few(len(known), len(values))


def _published(rows: list[dict]) -> list[str]:
    known = [row for row in rows if row["published"]]
    if not known:
        return []
    names = list(dict.fromkeys(name for row in known for name in row["published"]))
    cells = [[row["task"], *(f"{row['published'][n]:g}" if n in row["published"] else "–" for n in names)] for row in known]
    twins = [row["task"] for row in known if row["data"] != "real"]
    note = f" Not to be compared with the twins above ({', '.join(twins)}): other rows, another difficulty." if twins else ""
    return ["", f"## {PUBLISHED}", "", f"On Kaggle's data, as reported elsewhere (tasks/published.csv).{note}", "",
            *_grid(["task", *(f"{PUBLISHED}: {name}" for name in names)], cells)]  # fmt: skip


def _checks(rows: list[dict]) -> list[str]:
    lines = ["", "## Checks of the selected programs", ""]
    for row in rows:
        for result in row["results"]:
            where = f"{result['task']}, seed {result['seed']}"
            lines += [describe_checks(f"{where}, {who}", result["checks"][who]) for who in POLICIES]
    return lines


def _grid(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _cell(value: tuple | None, seeds: int) -> str:
    return "–" if value is None else f"{value[0]:.4f}{_pm(value[1])}{_few(value[2], seeds)}"


def _pm(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def _few(n: int, seeds: int) -> str:
    return "" if n == seeds else f" [{n} of {seeds} seeds]"


def to_csv(rows: list[dict]) -> str:
    """Return one line per task and policy or baseline; published scores are lines of their own kind of data."""
    keys = ("score", "normalised", "valid_frac", "mean_reward")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{key}_{kind}" for key in keys for kind in ("mean", "se")]
    writer.writerow(["task", "data", "metric", "split", "who", "seeds", "samples", *columns])
    for row in rows:
        for who, values in row["who"].items():
            numbers = [x for key in keys for x in (values[key] or (None, None))[:2]]
            counted = values["score"][2] if values["score"] else 0
            writer.writerow([row["task"], row["data"], row["metric"], row["split"], who, counted, row["samples"], *numbers])
        for name, score in row["published"].items():
            writer.writerow([row["task"], PUBLISHED, row["metric"], "test", name, "", "", score, *[""] * (len(columns) - 1)])
    return text.getvalue()


def write_table(results: list[dict], directory: Path) -> str:
    """Write results.md, results.csv and results.png; return the Markdown. Raises UsageError, see aggregate."""
    rows = aggregate(results)
    text = to_markdown(rows)
    write_atomically(directory / "results.md", text)
    write_atomically(directory / "results.csv", to_csv(rows))
    _draw(rows, directory / "results.png")
    return text


def table(result: dict) -> str:
    """Lay the two policies of one entry of eval.json out side by side, as text."""
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


def _draw(rows: list[dict], path: Path) -> None:
    """Draw the normalised score, in [-1, 1], of everyone for each task, with standard errors."""
    plt = load_pyplot()
    figure, axis = plt.subplots(figsize=(9, 1.8 + 0.55 * len(rows)), layout="constrained")
    styles = dict(zip(EVERYONE, ("o", "D", "|", "<", ">", "s"), strict=True))
    for i, who in enumerate(EVERYONE):
        known = [(y, row["who"][who]["normalised"]) for y, row in enumerate(rows) if row["who"][who]["normalised"]]
        places = [y + (i - (len(EVERYONE) - 1) / 2) * 0.11 for y, _ in known]
        errors = [value[1] or 0 for _, value in known]
        axis.errorbar([value[0] for _, value in known], places, xerr=errors, fmt=styles[who], ms=6, capsize=2, label=who)
    axis.set(xlim=(-1.02, 1.02), xlabel="normalised score (1 is perfect); bars: standard error over seeds")
    labels = [f"{row['task']} ({row['data']}, {row['seeds']} seed{'s' * (row['seeds'] > 1)})" for row in rows]
    axis.set_yticks(range(len(rows)), labels)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.legend(ncols=len(EVERYONE), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=110)
    plt.close(figure)
