"""The statistics and the table of robust.py, which defines them: plain functions of the rewards that it kept."""

import math
import re
import statistics

HELD_OUT = "held-out"


def attempts_per_success(valid_frac: float) -> float:
    """Return 1 / p, the expected number of programs until one is valid; inf where none was."""
    return 1 / valid_frac if valid_frac > 0 else math.inf


def summarise(episodes: list[dict]) -> dict:
    """Return the statistics of a piece, as the top of this file defines them; None where one is undefined."""
    scores = [e["score"] for e in episodes if e["score"] is not None]
    means = [statistics.fmean(group) for group in _grouped(episodes, "repeat").values()]
    spreads = [statistics.variance(group) for group in _grouped(episodes, "index").values() if len(group) > 1]
    valid_frac = len(scores) / len(episodes)
    attempts = attempts_per_success(valid_frac)
    return {
        "programs": len(episodes),
        "valid_frac": valid_frac,
        "attempts_per_success": attempts if math.isfinite(attempts) else None,
        "mean_reward": statistics.fmean(e["reward"] for e in episodes),
        "variance_of_mean": statistics.variance(means) if len(means) > 1 else None,
        "variance_in_prompt": statistics.fmean(spreads) if spreads else None,
        "mean_score": statistics.fmean(scores) if scores else None,
    }


def _grouped(episodes: list[dict], key: str) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for e in episodes:
        groups.setdefault(e[key], []).append(e["reward"])
    return groups


def compare(base: list[dict], other: list[dict]) -> dict:
    """Return the drop of reward and of valid fraction from base to other, with standard errors, over the pairs in both."""
    pairs: dict[int, list[tuple[float, float]]] = {}
    found = {(e["repeat"], e["index"]): e for e in other}
    for a in base:
        if b := found.get((a["repeat"], a["index"])):
            valid = (a["score"] is not None) - (b["score"] is not None)
            pairs.setdefault(a["index"], []).append((a["reward"] - b["reward"], valid))
    result = {}
    for column, name in enumerate(("reward_drop", "valid_drop")):
        drops = [statistics.fmean(pair[column] for pair in group) for group in pairs.values()]
        result[name] = statistics.fmean(drops) if drops else None
        result[f"{name}_se"] = statistics.stdev(drops) / math.sqrt(len(drops)) if len(drops) > 1 else None
    return result


COLUMNS = (  # heading, key, standard error, format
    ("success", "valid_frac", None, ".1%"), ("attempts", "attempts_per_success", None, ".2f"),
    ("reward", "mean_reward", None, ".3f"), ("var. of mean", "variance_of_mean", None, ".4f"),
    ("var. in prompt", "variance_in_prompt", None, ".3f"), ("val score", "mean_score", None, ".4f"),
    ("drop of success", "valid_drop", "valid_drop_se", ".1%"), ("drop of reward", "reward_drop", "reward_drop_se", ".3f"),
)  # fmt: skip


def as_markdown(report: dict) -> str:
    """Write robust.json as Markdown: per task a table of all policies and perturbations, and the notes."""
    policies = " and ".join(f"{name} ({step})" for name, step in report["policies"].items())
    protocol = f"{report['samples']} prompts, each answered {report['repeats']} times, temperature {report['temperature']}"
    lines = [
        "# Robustness",
        "",
        f"{policies}: {protocol}.",
        "A drop is against `none`, ± its standard error; robust.py defines it all.",
    ]
    for task in report["tasks"]:
        lines += ["", f"## {task['task']} ({task['data']} data), {task['metric']}", ""]
        cells = [["policy", "perturbation", *(heading for heading, *_ in COLUMNS)]]
        cells += [[row["policy"], _label(row), *(_cell(row, *column) for _, *column in COLUMNS)] for row in task["rows"]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        cells.insert(1, ["-" * width for width in widths])
        lines += ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
        lines += ["", *(f"- {note}" for note in task["notes"])]
    return "\n".join(lines) + "\n"


def _label(row: dict) -> str:
    return f"{HELD_OUT}: {row['task']} ({row['metric']})" if row["perturbation"] == HELD_OUT else row["perturbation"]


def _cell(row: dict, key: str, error: str | None, form: str) -> str:
    if key == "attempts_per_success" and key in row and row[key] is None:
        return "∞"
    if row.get(key) is None:
        return "–"
    text = f"{row[key]:{form}}" + (f" ± {row[error]:{form}}" if error and row.get(error) is not None else "")
    return re.sub(r"^-(0[.0]*%?)(?= |$)", r"\1", text)  # -0.000
