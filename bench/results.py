"""Everything that docs/results.md shows: trained policies of the twelve twins, their evaluation, two ablations, robustness.

    nohup python bench/results.py > results.log &          hours on two cores; the same command again goes on

Runs are in runs/results/TASK-SEED and runs/results/ablate; what is complete is not repeated. Three seeds for six tasks, those
whose programs are quick, one for the other six. The secret of each run, and so its twin, follows from task and seed, so that
a second machine has the same. Tables and figures are copied to docs/results/; docs/results.md says, by hand, what they mean.
"""

import hashlib
import math
import re
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

from sklearn.utils import all_estimators

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from checkpoint import write_atomically
from curves import read_lines, read_metrics
from tasks import find_task, task_names

ROOT = Path(__file__).resolve().parent.parent
RUNS, DOCS = ROOT / "runs" / "results", ROOT / "docs" / "results"
STEPS, BATCH, SAMPLES = "20", "32", "128"
THREE_SEEDS = ("random-pizza", "tabular-may-2022", "insults", "spooky-author", "essay-scoring", "tweet-sentiment")
ABLATED = "spooky-author,patent-phrases"
ABLATION = ["--variants", "full,no-duration-weight,no-instrumentation,no-improvement,group,sft-only", "--seeds", "0,1,2",
            "--steps", "10", "--batch-size", "32", "--sandboxes", "4"]  # fmt: skip


def run(script: str, *args) -> None:
    """Run one of our scripts; stop at its first failure."""
    command = [sys.executable, str(ROOT / script), *map(str, args)]
    print("+", *command[1:], flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def train(task: str, seed: int) -> Path:
    """Train one policy, unless that is done; return its folder."""
    run_dir = RUNS / f"{task}-{seed}"
    latest = run_dir / "latest"
    if latest.exists():
        if latest.read_text().strip() != f"step_{STEPS}":
            run("train.py", "--resume", run_dir)
        return run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(run_dir / "secret", hashlib.sha256(f"results/{task}/{seed}".encode()).hexdigest(), mode=0o600)
    run("train.py", "--model", "tiny", "--task", task, "--seed", seed, "--steps", STEPS, "--batch-size", BATCH,
        "--run-dir", run_dir)  # fmt: skip
    return run_dir


def effective_number(names: list[str]) -> float:
    """Return exp(entropy) of how often each name occurs: 3 for three equally frequent ones."""
    counts = Counter(names).values()
    return math.exp(-sum(n / len(names) * math.log(n / len(names)) for n in counts))


def narrowing(runs: list[Path]) -> str:
    """Return a table of how much programs differ from one another in the first and in the last three steps of runs."""
    models = {name for name, _ in all_estimators(["classifier", "regressor"])}
    lines = ["| run | entropy, nats a token | model classes, exp(entropy) | share of the most frequent |", "|---|---|---|---|"]
    for run_dir in runs:
        metrics, episodes = read_metrics(run_dir), list(read_lines(run_dir / "episodes.jsonl"))
        entropy, classes, most = [], [], []
        for part in (metrics[:3], metrics[-3:]):
            steps = [record["step"] for record in part]
            programs = "\n".join(e["program"] or "" for e in episodes if e["step"] in steps)
            names = [name for name in re.findall(r"([A-Z]\w+)\(", programs) if name in models]
            name, count = Counter(names).most_common(1)[0] if names else ("–", 0)
            entropy.append(f"{statistics.fmean(record['policy/entropy'] for record in part):.2f}")
            classes.append(f"{effective_number(names):.1f}")
            most.append(f"{name} {count / max(1, len(names)):.0%}")
        lines.append(f"| {run_dir.name} | {' → '.join(entropy)} | {' → '.join(classes)} | {' → '.join(most)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    twelve = [name for name in task_names() if find_task(name).ID]
    runs = [train(task, 0) for task in sorted(twelve, key=lambda name: name not in THREE_SEEDS)]
    runs += [train(task, seed) for seed in (1, 2) for task in THREE_SEEDS]
    run("eval.py", *runs, "--samples", SAMPLES, "--out", DOCS)
    (DOCS / "narrowing.md").write_text(narrowing(runs[: len(twelve)]))
    run("eval.py", "--ablate", ABLATED, *ABLATION, "--ablate-dir", RUNS / "ablate")
    for task in ABLATED.split(","):
        for suffix in ("md", "png"):
            shutil.copy(RUNS / "ablate" / task / f"ablation.{suffix}", DOCS / f"ablation_{task}.{suffix}")
    run("eval.py", RUNS / "random-pizza-0", "--robust", "--samples", "32")
    shutil.copy(RUNS / "random-pizza-0" / "robust.md", DOCS / "robust_random-pizza.md")
    run("report.py", RUNS / "random-pizza-0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
