"""What a run writes down: a console line a step, metrics.jsonl, episodes.jsonl, TensorBoard's view of them, a model card."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from checkpoint import drop_lines_from, write_atomically
from config import Config
from instrument import MILESTONES
from rollout import Episode
from tasks import Task

HEADER = "  step |  reward | valid |  best | milest |    Δt s |    kl |  clip | entropy |  tok/s |   eta"


def episode_metrics(episodes: list[Episode], tasks: Sequence[Task], batch_size: int, policy_version: int) -> dict[str, float]:
    """Summarise a batch of episodes. Fractions are of all that were collected; score metrics of the valid ones."""
    n = len(episodes)
    valid = [e for e in episodes if e.reward.score is not None]
    durations = np.array([e.execution.duration_s for e in episodes])
    scores = np.array([e.reward.score for e in valid])
    metrics = {
        "reward/mean": float(np.mean([e.reward.total for e in episodes])),
        "reward/std": float(np.std([e.reward.total for e in episodes])),
        "reward/penalised_frac": sum(bool(e.reward.penalties) for e in episodes) / n,
        "rollout/valid_frac": len(valid) / n,
        "rollout/improve_frac": sum(e.kind == "improve" for e in episodes) / n,
        "rollout/cut_frac": sum(e.finish_reason == "length" for e in episodes) / n,
        "rollout/no_program_frac": sum(e.program is None for e in episodes) / n,
        "rollout/staleness_mean": float(np.mean([policy_version - e.policy_version for e in episodes])),
        "rollout/staleness_max": float(max(policy_version - e.policy_version for e in episodes)),
        "rollout/distinct_frac": len({e.program for e in episodes}) / n,
        "rollout/response_tok": float(np.mean([len(e.response_ids) for e in episodes])),
        "instrument/lm_accepted_frac": sum(e.instrumented_by == "lm" for e in episodes) / n,
        "milestone/mean": float(np.mean([len(e.reward.milestones) for e in episodes])),
        "duration/mean_s": float(durations.mean()),
        "duration/median_s": float(np.median(durations)),
        "duration/max_s": float(durations.max()),
    }
    if valid and len(tasks) == 1:  # scores of different tasks do not add up
        better = scores.max() if tasks[0].higher_is_better else scores.min()
        metrics |= {"rollout/score_mean": float(scores.mean()), "rollout/score_best": float(better)}
    for task in tasks if len(tasks) > 1 else ():
        own = [e for e in episodes if e.task == task.name]
        scored = [e.reward.score for e in own if e.reward.score is not None]
        metrics |= {f"task/{task.name}/reward": float(np.mean([e.reward.total for e in own]))} if own else {}
        metrics |= {f"task/{task.name}/valid_frac": len(scored) / len(own)} if own else {}
        metrics |= {f"task/{task.name}/score_mean": float(np.mean(scored))} if scored else {}
    metrics |= {f"milestone/{name}": sum(name in e.reward.milestones for e in episodes) / n for name in MILESTONES}
    for name in ("setup_s", "queue_s", "run_delay_s"):
        metrics[f"sandbox/{name}"] = float(np.mean([getattr(e.execution, name) for e in episodes]))
    metrics["sandbox/sleeper_frac"] = sum(e.execution.sleeper for e in episodes) / n
    metrics["sandbox/infra_frac"] = 1 - n / batch_size  # programs left out, since the fault was ours
    for status in ("ok", "error", "timeout", "oom", "output_limit"):
        metrics[f"sandbox/{status}_frac"] = sum(e.execution.status == status for e in episodes) / n
    return metrics


class RunLog:
    """Writes the records of each step. A resumed run first drops those it will write again."""

    def __init__(self, run_dir: Path, first_step: int, last_step: int):
        self.first_step, self.last_step, self.started = first_step, last_step, time.monotonic()
        for name in ("metrics.jsonl", "episodes.jsonl"):
            drop_lines_from(run_dir / name, first_step + 1)
        self.metrics = open(run_dir / "metrics.jsonl", "a", buffering=1)  # noqa: SIM115 (open for the whole run)
        self.episodes = open(run_dir / "episodes.jsonl", "a", buffering=1)  # noqa: SIM115
        self.board = SummaryWriter(str(run_dir), purge_step=first_step + 1)
        print(HEADER)

    def write(self, step: int, episodes: list[Episode], metrics: dict[str, float]) -> None:
        """Write one step; step counts from 1."""
        self.metrics.write(json.dumps({"step": step, **metrics}) + "\n")
        for episode in episodes:
            self.episodes.write(json.dumps({"step": step, **episode.record()}) + "\n")
        for name, value in metrics.items():
            self.board.add_scalar(name, value, step)
        self.board.add_histogram("duration/histogram_s", np.array([e.execution.duration_s for e in episodes]), step)
        sampled = episodes[0]
        self.board.add_text("rollout/program", f"reward {sampled.reward.total:.3f}\n\n{_indented(sampled.response)}", step)
        self.board.flush()
        print(self._line(step, episodes, metrics), flush=True)

    def _line(self, step: int, episodes: list[Episode], m: dict[str, float]) -> str:
        per_step = (time.monotonic() - self.started) / (step - self.first_step)
        tokens = sum(len(e.response_ids) for e in episodes) / (m["time/collect_s"] + m["time/update_s"])
        eta = int(per_step * (self.last_step - step))
        best = m.get("rollout/score_best", float("nan"))
        return (
            f"{step:6d} | {m['reward/mean']:7.3f} | {m['rollout/valid_frac']:5.0%} | {best:5.3f} | "
            f"{m['milestone/mean']:6.2f} | {m['duration/mean_s']:7.3f} | {m['policy/kl_ref']:5.2f} | "
            f"{m['policy/clip_frac']:5.3f} | {m['policy/entropy']:7.3f} | {tokens:6.0f} | {eta // 60:3d}:{eta % 60:02d}"
        )


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())  # a code block in TensorBoard's Markdown


# ----------------------------------------------------------------------------------------------------------- model card

CARD = """\
---
library_name: transformers
tags: [reinforcement-learning, machine-learning-engineering, nanomle]
---
# {name}

{model} after {steps} PPO steps of {batch_size} programs on {tasks}:
it reads a task and writes a Python program that trains a model and writes `submission.csv`. Made by nanoMLE, commit {commit}:

    {command}

| last step | |
|---|---|
{metrics}

The metrics are of programs sampled at temperature {temperature} and scored on the reward split; `eval.py` reports on the test
split.
`AutoModelForCausalLM.from_pretrained` loads this folder; `value_head.safetensors` and `trainer.pt` are for nanoMLE only.

Limits: it knows the prompts of `prompts.py` and no others. What it writes is as untrusted as any generated program: run it in
a sandbox. A micro twin is a synthetic stand-in for a competition; scores on it say nothing about the real one.
"""


def write_model_card(directory: Path, run_dir: Path, config: Config, tasks: Sequence[Task], command: str) -> None:
    """Write README.md beside the final checkpoint: base model, data, command, commit, metrics of the last step, limits."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) if lines else {}
    names = [name for name in sorted(last) if name.startswith(("reward/", "rollout/", "task/", "policy/kl"))]
    rows = [f"| `{name}` | {last[name]:.4g} |" for name in names]
    card = CARD.format(
        name=run_dir.name, model=config.model, steps=config.steps, batch_size=config.batch_size, command=command,
        tasks=", ".join(f"{task.name} ({task.data} data)" for task in tasks), metrics="\n".join(rows), commit=_commit(),
        temperature=config.temperature,
    )  # fmt: skip
    write_atomically(directory / "README.md", card)


def _commit() -> str:
    """Return the commit of this code, with a mark if files were changed since; unknown where there is no git."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
