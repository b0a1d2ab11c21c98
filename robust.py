"""How much does a trained policy lose when its task is presented differently?

    python eval.py runs/random-pizza --robust --samples 32 --repeats 3

Starting and trained policy answer the same prompts as perturbations.py changes them, and those of a task that was not trained
on. N prompts, each answered R times, with the same random numbers for every perturbation. reward_ir is the reward of prompt i
in repeat r, on the reward split:

    success               share p of the programs with a valid submission
    attempts              1 / p, the programs to expect until one is valid; none where p is 0 (∞ in the table)
    variance of the mean  Var_r(mean_i reward_ir): of the mean reward of a whole evaluation, from one to the next
    variance in a prompt  mean_i(Var_r reward_ir): of the reward of one prompt; both variances divide by R - 1
    drop                  mean_i d_i, d_i = mean_r(reward_ir of none - reward_ir of the perturbation)
    its standard error    sd(d_i) / sqrt(N): pairs, prompts taken for independent; of files, only one draw is in it

Writes <run>/robust.json, <run>/robust.md and prints that table. Finished pieces, one per policy and perturbation, are kept in
<run>/robust/ under a hash of what they depend on (weights, prompts, data, settings, code): what is interrupted goes on.
"""

import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint import UsageError, checkpoints_to_evaluate, load_checkpoint_policy, load_secret, write_atomically
from config import Config, load_config
from model import Policy, context_tok, reads_brief_prompts
from perturbations import FILES, NAMES, View, build_view
from pieces import common_dependencies, digest_data, digest_file, digest_weights
from prompts import build_prompt, encode_prompt
from ranks import device
from robust_table import HELD_OUT, as_markdown, compare, summarise
from rollout import Collector
from sandbox import InfraError
from tasks import Task, expand_names, find_task, load_task, task_names
from train import build_collector, build_sandbox, load_run_tasks, prepare, set_threads

REPEATS = 3


@dataclass(frozen=True)
class Piece:
    """One policy on one presentation of one task."""

    policy: str  # start | trained
    checkpoint: Path
    view: View
    path: Path  # where its result is kept; the name holds the hash

    def load(self) -> dict | None:
        """Return the kept result, None if there is none or it is broken."""
        try:
            result = json.loads(self.path.read_text())
            return result if {"left_out", "episodes"} <= result.keys() else None
        except (OSError, ValueError, AttributeError):
            return None

    def is_whole(self, programs: int) -> bool:
        """Tell whether there is a result that no fault of ours took programs from."""
        kept = self.load()
        return kept is not None and (bool(kept["left_out"]) or len(kept["episodes"]) == programs)


def evaluate_robustness(run_dir: Path, samples: int, repeats: int | None = None, held_out: str | None = None) -> None:
    """Measure both policies of a run under every perturbation; write robust.json and robust.md, print the table.

    samples: prompts; repeats: answers to each. Raises UsageError for a folder that is no run, or a bad argument.
    """
    repeats = REPEATS if repeats is None else repeats
    if repeats < 1:
        raise UsageError(f"--repeats {repeats} must be positive")
    config, policies = load_config(run_dir), checkpoints_to_evaluate(run_dir)
    held_out = choose_held_out(config, held_out)
    set_threads(config)
    tasks = load_run_tasks(config, run_dir, "reward")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # as a run's: programs of another user then follow links to images, else these are copied
        views = {task.name: build_views(task, config.seed, Path(folder) / str(i)) for i, task in enumerate(tasks)}
        other = View(HELD_OUT, load_held_out(config, run_dir, held_out, Path(folder) / HELD_OUT)) if held_out else None
        shown = [view for of_task in views.values() for view in of_task.values() if view] + [other] * (other is not None)
        pieces = plan(config, run_dir, policies, shown, samples, repeats)
        measure(config, run_dir, [piece for piece in pieces if not piece.is_whole(samples * repeats)], samples, repeats)
        done = {(piece.policy, id(piece.view)): piece.load() for piece in pieces}
        report = {
            "samples": samples, "repeats": repeats, "temperature": config.temperature,
            "policies": {name: path.name for name, path in policies.items()},
            "tasks": [describe_task(config, task, views[task.name], other, done, samples * repeats) for task in tasks],
        }  # fmt: skip
    text = as_markdown(report)
    write_atomically(run_dir / "robust.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    write_atomically(run_dir / "robust.md", text)
    print(f"\n{text}\nall numbers: {run_dir / 'robust.json'}; table: {run_dir / 'robust.md'}")


# ------------------------------------------------------------------------------------------------------------------ set-up


def choose_held_out(config: Config, name: str | None) -> str | None:
    """Return the task to hold out: the named one, or the first by name of the twelve that the run has not; None if it has all.

    Raises UsageError for an unknown task, or one that was trained on.
    """
    try:
        trained = {find_task(given).NAME for given in expand_names(config.task)}
        if name is not None and find_task(name).NAME in trained:
            raise UsageError(f"--held-out {name}: the run was trained on it; name another one")
    except ValueError as error:
        given = f"--held-out {name}" if name is not None else f"the run's task {config.task}"
        raise UsageError(f"{error}" if isinstance(error, UsageError) else f"{given}: {error}") from error
    twelve = sorted(known for known in task_names() if find_task(known).ID)
    return name if name is not None else next((known for known in twelve if known not in trained), None)


def load_held_out(config: Config, run_dir: Path, name: str, root: Path) -> Task:
    """Return the held-out task: its real data if the run has real data and they are beside the run's, else its twin."""
    module = find_task(name)
    data_dir = Path(config.data_dir) if config.data_dir and module.ID and (Path(config.data_dir) / module.ID).is_dir() else None
    try:
        return load_task(name, root, "reward", seed=config.seed, salt=load_secret(run_dir), data_dir=data_dir,
                         time_limit_s=config.time_limit_s)  # fmt: skip
    except (ValueError, OSError) as error:
        raise UsageError(f"--held-out {name}: its data cannot be used: {' '.join(str(error).split())}") from error


def build_views(task: Task, seed: int, root: Path) -> dict[str, View | None]:
    return {name: build_view(task, name, seed, root) for name in NAMES}


def plan(
    config: Config, run_dir: Path, policies: dict[str, Path], views: list[View], samples: int, repeats: int
) -> list[Piece]:
    """Return the pieces of work: of each policy every view. The file's name holds a hash of all that the result depends on."""
    here = Path(__file__).parent
    common = [repr(common_dependencies(config, samples, "val", device())), repr(repeats)]
    common += [digest_file(here / name) for name in ("perturbations.py", "robust.py")]
    pieces = []
    for name, checkpoint in policies.items():
        weights = digest_weights(checkpoint)
        for view in views:
            parts = [*common, weights, *prompts_of(config, view, samples), digest_data([view.task])]
            key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
            file = re.sub(r"[^\w.-]", "_", f"{name}-{view.task.name}-{view.name}-{key}.json")
            pieces.append(Piece(name, checkpoint, view, run_dir / "robust" / file))
    return pieces


def prompts_of(config: Config, view: View, samples: int) -> list[str]:
    """Return the texts of the prompts of a view."""
    prompt = build_prompt(view.task, brief=is_brief(config), memory_gib=config.memory_gib)
    return [view.rewrite(prompt, i) if view.rewrite else prompt for i in range(samples)]


def is_brief(config: Config) -> bool:
    return reads_brief_prompts(str(Path(config.run_dir) / "step_0"))


# ------------------------------------------------------------------------------------------------------------- measurement


def measure(config: Config, run_dir: Path, missing: list[Piece], samples: int, repeats: int) -> None:
    """Run the pieces that are not there yet, one policy after the other, and keep each."""
    if not missing:
        return
    (run_dir / "robust").mkdir(exist_ok=True)
    needs_reference = config.instrumenter == "lm"
    start = load_checkpoint_policy(run_dir / "step_0", device()).requires_grad_(False) if needs_reference else None
    reference = start and prepare(config, start)
    policy, loaded = None, None
    with build_sandbox(config) as sandbox:
        tasks = list({id(piece.view.task): piece.view.task for piece in missing}.values())
        collector = build_collector(config, tasks, sandbox, load_secret(run_dir), reference)
        for number, piece in enumerate(missing, 1):
            if loaded != piece.checkpoint:
                policy, loaded = prepare(config, load_checkpoint_policy(piece.checkpoint, device())), piece.checkpoint
            where = f"{piece.policy}, {piece.view.task.name}, {piece.view.name}"
            print(f"{number} of {len(missing)}: {where}: {samples} x {repeats} programs ...", flush=True)
            result = run_piece(config, policy, collector, piece, samples, repeats)
            write_atomically(piece.path, json.dumps(result) + "\n")


def run_piece(config: Config, policy: Policy, collector: Collector, piece: Piece, samples: int, repeats: int) -> dict:
    """Return {"left_out": why not | None, "episodes": [...]}: the reward of each prompt in each repeat.

    Raises InfraError if no program could be run.
    """
    distinct = set(prompts_of(config, piece.view, samples))
    longest = max(len(encode_prompt(policy.tokenizer, prompt)) for prompt in distinct)
    context = context_tok(str(piece.checkpoint))
    if longest + config.max_new_tok > context:
        reason = f"prompts of {longest} tokens and answers of {config.max_new_tok} exceed the model's context of {context:g}"
        return {"left_out": reason, "episodes": []}
    records = []
    for repeat in range(repeats):
        single = replace(
            collector, tasks=[piece.view.task], seed=f"{config.seed}/robust/{repeat}", improve_frac=0.0,
            max_prompt_tok=longest, rewrite=piece.view.rewrite,
        )  # fmt: skip
        for episode in single.collect(policy, range(samples)):
            records.append({"repeat": repeat, "index": episode.index, "reward": episode.reward.total,
                            "score": episode.reward.score})  # fmt: skip
    if not records:
        raise InfraError("no program could be run")
    return {"left_out": None, "episodes": records}


# ------------------------------------------------------------------------------------------------------------------ report


def describe_task(config: Config, task: Task, views: dict, other: View | None, done: dict, programs: int) -> dict:
    """Return a task's part of robust.json: a row per perturbation and policy, and notes."""
    rows = []
    for policy in ("start", "trained"):
        base = done[policy, id(views["none"])]["episodes"]
        for name, view in [*views.items(), *([(HELD_OUT, other)] if other else [])]:
            row = {"policy": policy, "perturbation": name, "left_out": "it changes nothing of this task"}
            if view is not None:
                piece = done[policy, id(view)]
                row |= {"task": view.task.name, "metric": view.task.metric, "left_out": piece["left_out"]}
                row |= summarise(piece["episodes"]) if piece["episodes"] else {}
                row |= compare(base, piece["episodes"]) if name != "none" and base and piece["episodes"] else {}
            rows.append(row)
    notes = _notes(config, task, views, other, rows, programs)
    return {"task": task.name, "data": task.data, "metric": task.metric, "notes": notes, "rows": rows}


def _notes(config: Config, task: Task, views: dict, other: View | None, rows: list[dict], programs: int) -> list[str]:
    notes, (prompt,) = [], prompts_of(config, views["none"], 1)
    if task.description.strip() not in prompt:
        notes.append("The prompt of this policy does not show the task's description: typos, irrelevant sentences and hints "
                     "are put into what it shows, the brief prompt's lines.")  # fmt: skip
    if same := [name for name, view in views.items() if name in FILES and view and prompts_of(config, view, 1) == [prompt]]:
        notes.append(f"{', '.join(same)}: the prompt is that of none, only the files differ; a policy that does not read what "
                     "has changed in them loses nothing.")  # fmt: skip
    if other is None:
        notes.append("No task is held out: the run was trained on all twelve; name one with --held-out.")
    for row in rows:
        if row["left_out"]:
            notes.append(f"{row['policy']}, {row['perturbation']}: not measured, {row['left_out']}.")
        elif row["programs"] < programs:
            fewer = f"{programs - row['programs']} of {programs} programs are left out, by our fault; evaluate again"
            notes.append(f"{row['policy']}, {row['perturbation']}: {fewer}.")
        if row["perturbation"] == HELD_OUT and not row["left_out"] and row["policy"] == "trained":
            valid = round(row["valid_frac"] * row["programs"])
            verdict = "it fails completely" if valid == 0 else f"{valid} of {row['programs']} programs are valid"
            notes.append(f"Held-out task {row['task']} ({other.task.data} data), never trained on: {verdict}.")
    return notes
