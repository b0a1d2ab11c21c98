"""One HTML page about a run, in one file that asks for nothing else: settings, results, curves, sampled programs.

    python report.py runs/random-pizza                  # writes runs/random-pizza/report.html
    make report RUN=runs/random-pizza

It reads what is there, of a run that is still going too, and says which command makes what is not. What models and
programs wrote is hostile: it enters the page through report_html.text alone, which escapes it, and the page forbids scripts.
"""

import argparse
import json
import re
import shlex
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from checkpoint import UsageError, write_atomically
from config import run_main, usage_error
from curves import read_lines, read_metrics
from report_figures import draw_curves, draw_durations, draw_milestones, draw_statuses, draw_tasks
from report_html import code, cut, figure, from_markdown, missing, note, section, table, text, whole_page
from robust_table import as_markdown
from tasks import find_task

SHOWN = 3  # programs of each kind: valid or failed, first or last
ERROR_CHARS = 1500  # of stderr
SELECTED = 12  # selected programs: of a run of all tasks
SETTINGS = ("model", "task", "steps", "batch_size", "seed", "temperature", "collect", "duration_weight", "advantage",
            "learning_rate", "lora_rank", "reward_split", "instrumenter")  # fmt: skip

# ------------------------------------------------------------------------------------------------------------------ reading


@dataclass
class Episodes:
    """What one pass over episodes.jsonl keeps: it may be larger than memory."""

    durations: list[tuple[int, float]] = field(default_factory=list)  # (step, Δt in seconds) of every program
    first: dict[bool, list[dict]] = field(default_factory=lambda: {True: [], False: []})  # by valid or not
    last: dict[bool, deque] = field(default_factory=lambda: {ok: deque(maxlen=SHOWN) for ok in (True, False)})

    def add(self, episode: dict) -> None:
        self.durations.append((episode["step"], float(episode["execution"]["duration_s"])))
        valid = episode["reward"]["score"] is not None
        shown = {name: episode.get(name) for name in ("step", "task", "kind", "program", "response", "reward", "execution")}
        known = [e["response"] for e in (*self.first[valid], *self.last[valid])]
        if shown["response"] in known:  # a policy that has narrowed down repeats itself
            return
        if len(self.first[valid]) < SHOWN:
            self.first[valid].append(shown)
        else:
            self.last[valid].append(shown)


def read_episodes(path: Path) -> Episodes:
    """Return what the page shows of episodes.jsonl. Raises UsageError for a file of another form."""
    episodes = Episodes()
    try:
        for record in read_lines(path):
            episodes.add(record)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} lacks {error}: is it the file that train.py wrote?") from error
    return episodes


def read_json(path: Path) -> dict | None:
    """Return a file's object, None if there is no file. Raises UsageError if it is broken."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}): remove it, or make it again") from error


def read_origin(run_dir: Path) -> tuple[str, str]:
    """Return (commit, command) as the model card beside the last checkpoint has them; it is written when a run ends."""
    cards = sorted(run_dir.glob("step_*/README.md"), key=lambda path: path.stat().st_mtime)
    found = re.search(r"commit (\S+):\n\n    (.*)", cards[-1].read_text(errors="replace")) if cards else None
    return (found[1], found[2]) if found else ("not known until the run ends",) * 2


# ----------------------------------------------------------------------------------------------------------------- sections


def settings_section(run_dir: Path, config: dict, metrics: list[dict]) -> str:
    commit, command = read_origin(run_dir)
    done, planned = metrics[-1]["step"], config.get("steps")
    state = "finished" if done == planned else "still going, or stopped"
    rows = [["state", f"step {done} of {planned}: {state}"], ["data", data_kind(config)]]
    rows += [[name.replace("_", " "), cut(str(config[name]), 1000)] for name in SETTINGS if name in config and name != "steps"]
    everything = table(["setting", "value"], [[name, cut(str(value), 1000)] for name, value in config.items()])
    return (
        f'<h1>{text(run_dir.resolve().name)}</h1><p class="soft">a run of nanoMLE</p>'
        + table([], [*rows, ["commit", commit], ["command", command]])
        + f"<details><summary>all settings</summary>{everything}</details>\n"
    )


def data_kind(config: dict) -> str:
    """Return real, twin, or what each task's own file says."""
    if config.get("data_dir"):
        return "real"
    names = str(config.get("task", "")).split(",")
    kinds = {"twin"} if names == ["all"] else set()
    for name in names if not kinds else ():
        try:
            kinds.add("of a task's own file" if name.endswith(".py") else find_task(name).DATA)  # a file is not run for this
        except ValueError:
            kinds.add("unknown")
    return ", ".join(sorted(kinds))


def results_section(run_dir: Path) -> str:
    command = f"python eval.py {shlex.quote(str(run_dir))}"
    found = read_json(run_dir / "eval.json")
    if found is None:
        return section("Results", missing("This run has not been evaluated.", command))
    try:
        return section("Results", *(result_table(result) for result in found.get("tasks", [found])))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{run_dir / 'eval.json'} lacks {error}: make it again with {command}") from error


def result_table(result: dict) -> str:
    """Return the table of one task of eval.json: starting and trained policy."""
    start, trained = result["start"], result["trained"]
    rows = [["programs", start["n"], trained["n"]], ["mean reward", start["mean_reward"], trained["mean_reward"]]]
    labels = {"valid_frac": "valid", "mean": "mean of valid", "median": "median of valid", "best": "chosen by val"}
    for split in (split for split in ("val", "test") if split in start and split in trained):
        a, b = start[split], trained[split]
        rows += [[f"{split}: {label}", a[key], b[key]] for key, label in labels.items()]
        rows += [[f"{split}: best of {k}", a["best_of_k"][k], b["best_of_k"][k]] for k in a["best_of_k"] if k in b["best_of_k"]]
    scores = {who: part.get("reported", {}).get("score") for who, part in result.get("baselines", {}).items()}
    known = ", ".join(f"{who} {score:.4f}" for who, score in scores.items() if score is not None)
    title = f"<h3>{text(result['task'])} ({text(result['data'])} data), {text(result['metric'])}</h3>"
    return title + table(["", "start", "trained"], rows) + (note(f"For comparison: {known}.") if known else "")


def robustness_section(run_dir: Path) -> str:
    found = read_json(run_dir / "robust.json")
    if found is None:
        command = f"python eval.py {shlex.quote(str(run_dir))} --robust"
        return section("Robustness", missing("It has not been measured how the policies take other presentations.", command))
    try:
        return section("Robustness", from_markdown(as_markdown(found).partition("\n")[2]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{run_dir / 'robust.json'} lacks {error}: make it again with eval.py --robust") from error


def ablation_section(run_dir: Path) -> str:
    """Return the table of ablate.py if it lies in the folder."""
    path = run_dir / "ablation.md"
    return section("Ablation", from_markdown(path.read_text(errors="replace"))) if path.exists() else ""


def curves_section(metrics: list[dict], episodes: Episodes) -> str:
    tasks = sorted({key.split("/")[1] for record in metrics for key in record if key.startswith("task/")})
    several = [figure(draw_tasks(metrics, tasks), "reward and valid fraction of each task")] if len(tasks) > 1 else []
    drawn = draw_durations(episodes.durations) if episodes.durations else None
    return (
        section("Learning curves", figure(draw_curves(metrics), "learning curves"), *several)
        + section("Milestones", note("Share of the programs that reach each step."),
                  figure(draw_milestones(metrics), "milestones over the steps"))
        + section("How programs ended", note("By the sandbox; ok is an exit code of 0, with or without a valid submission."),
                  figure(draw_statuses(metrics), "sandbox statuses over the steps"))
        + section("Running times", figure(drawn, "distribution of durations") if drawn else note("No program is recorded."))
    )  # fmt: skip


def samples_section(episodes: Episodes) -> str:
    parts = []
    for title, kept in (("first", episodes.first), ("last", episodes.last)):
        for valid, kind in ((True, "valid"), (False, "failed")):
            shown = "".join(episode_details(e) for e in kept[valid]) or note("none")
            parts.append(f"<h3>the {title} {kind} ones</h3>{shown}")
    return section("Programs before and after", note("Repeated responses are shown once."), *parts)


def episode_details(episode: dict) -> str:
    """Return one program with its reward, Δt, milestones, status and errors, folded."""
    reward, execution = episode["reward"], episode["execution"]
    score = reward["score"]
    facts = [
        f"step {episode['step']}", f"{episode['task']}, {episode['kind']}", f"reward {reward['total']:.3f}",
        "failed" if score is None else f"score {score:.4f}", f"Δt {execution['duration_s']:.2f} s",
        f"{len(reward['milestones'])} of 7 milestones", execution["status"],
    ]  # fmt: skip
    mark = "bad" if score is None else "good"
    line = "".join(f"<span{f' class={mark!r}' if i == 3 else ''}>{text(fact)}</span>" for i, fact in enumerate(facts))
    parts = [code(episode["program"] or episode["response"] or "")]
    parts += [note(f"why: {cut(reward['reason'], ERROR_CHARS)}")] if reward.get("reason") else []
    parts += [note(f"penalties: {reward['penalties']}")] if reward.get("penalties") else []
    parts += [note(f"milestones: {' '.join(reward['milestones']) or 'none'}")]
    parts += [f"<h3>stderr</h3>{code(execution['stderr'], ERROR_CHARS)}"] if execution.get("stderr") else []
    return f"<details><summary>{line}</summary>{''.join(parts)}</details>"


def selected_section(run_dir: Path) -> str:
    starting = {*run_dir.glob("selected_start.py"), *run_dir.glob("selected_start_*.py")}  # eval.py's, of step_0
    paths = sorted({*run_dir.glob("selected*.py")} - starting)[:SELECTED]
    if not paths:
        return section("The selected program", missing("eval.py selects it.", f"python eval.py {shlex.quote(str(run_dir))}"))
    parts = [f"<h3>{text(path.name)}</h3>{code(path.read_text(errors='replace'))}" for path in paths]
    return section("The selected program", note("The trained policy's best on val."), *parts)


def build_page(run_dir: Path) -> str:
    """Return the whole page, in ASCII. Raises UsageError for a folder that is no run, or has no finished step."""
    config = read_json(run_dir / "config.json")
    if not isinstance(config, dict):
        raise UsageError(f"{run_dir} is no run: it has no config.json; name the folder of a run")
    metrics = read_metrics(run_dir)
    episodes = read_episodes(run_dir / "episodes.jsonl")
    body = (
        settings_section(run_dir, config, metrics) + results_section(run_dir) + robustness_section(run_dir)
        + ablation_section(run_dir) + curves_section(metrics, episodes) + samples_section(episodes) + selected_section(run_dir)
    )  # fmt: skip
    return whole_page(run_dir.resolve().name, body)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.error = usage_error
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the page (<run>/report.html)")
    args = parser.parse_args(argv)
    out = args.out or args.run / "report.html"
    if args.out and (args.out.is_dir() or not args.out.parent.is_dir()):
        reason = "it is a folder" if args.out.is_dir() else f"there is no folder {args.out.parent}"
        raise UsageError(f"--out {args.out}: {reason}; name a file in a folder that exists")
    page = build_page(args.run)
    write_atomically(out, page)
    print(f"{out} ({len(page) / 2**20:.2f} MiB)")
    return 0


if __name__ == "__main__":
    run_main(main, "nothing of the run was changed")
