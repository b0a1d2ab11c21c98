"""How many sandboxes does a GPU need, and what do more nodes give? A simulation of stream.py, checked against stream.py.

    python bench/scale.py                                  6 minutes; tables, docs/scale.png, then one line of JSON
    python bench/scale.py --sample-s 9 --update-s 4 --run-s 30    with constants of your own: see docs/scale.md

Every rank (one GPU) samples its share of a batch, runs it in its own sandboxes and learns; then it waits for the slowest rank.
Running times are lognormal. The check runs the real Stream and the real sandbox with programs that sleep; sampling and
learning sleep too.
"""

import argparse
import heapq
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.collect import SleepCollector
from sandbox import Sandbox
from stream import Stream

ROOT = Path(__file__).resolve().parent.parent
MODES = ("sync", "async", "restart")
GPUS_A_NODE, SIGMA = 8, 1.5  # of the lognormal running times


@dataclass(frozen=True)
class Constants:
    """Of one rank. The defaults are assumptions for a 3B model on one GPU of 2024, not measurements."""

    share: int = 16  # programs of a batch
    sample_s: float = 30.0  # to sample one share
    update_s: float = 15.0  # to learn from one share
    run_s: float = 60.0  # mean running time of a program
    limit: float = 10.0  # time limit of a program, in mean running times
    max_staleness: int = 1


def draw_durations(constants: Constants, rng: np.random.Generator, n: int) -> np.ndarray:
    """Return n running times, (n,) seconds."""
    drawn = rng.lognormal(-(SIGMA**2) / 2, SIGMA, n)  # mean 1 before the limit cuts the longest
    return constants.run_s * drawn.clip(max=constants.limit)


class Rank:
    """One rank's sandboxes and programs. Times are seconds since the start; a run is (end, duration, number, version)."""

    def __init__(self, constants: Constants, sandboxes: int, rng: np.random.Generator):
        self.c, self.rng = constants, rng
        self.free = [0.0] * sandboxes  # when each sandbox is free, a heap
        self.runs, self.sampled, self.busy_s = [], 0, 0.0

    def start(self, now: float, version: int) -> None:
        """Queue the next program: the sandbox that is free first takes it."""
        duration = float(draw_durations(self.c, self.rng, 1)[0])
        end = max(now, heapq.heappop(self.free)) + duration
        heapq.heappush(self.free, end)
        self.runs.append((end, duration, self.sampled, version))
        self.sampled += 1

    def next_batch(self, mode: str, now: float, version: int) -> tuple[float, float]:
        """Return when the rank has its share of finished runs, and how many versions old they are in the mean."""
        if mode == "restart":
            return self._first_to_finish(now, version)
        ahead = self.c.max_staleness if mode == "async" else 0
        admitted = (version + 1 + ahead) * self.c.share
        now += self.c.sample_s * (admitted - self.sampled) / self.c.share
        while self.sampled < admitted:
            self.start(now, version)
        now = max(now, sorted(self.runs)[self.c.share - 1][0])
        taken = sorted((run for run in self.runs if run[0] <= now), key=lambda run: run[2])[: self.c.share]  # oldest first
        self.runs = [run for run in self.runs if run not in taken]
        self.busy_s += sum(run[1] for run in taken)
        return now, float(np.mean([version - run[3] for run in taken]))

    def _first_to_finish(self, now: float, version: int) -> tuple[float, float]:
        self.free, self.runs, waiting = [now] * len(self.free), [], 0
        while sum(run[0] <= now for run in self.runs) < self.c.share:
            if not waiting:
                now, waiting = now + self.c.sample_s, self.c.share
            while waiting and self.free[0] <= now:
                self.start(now, version)
                waiting -= 1
            now = max(now, self.free[0] if waiting or all(f > now for f in self.free) else now)
        taken = sorted(self.runs)[: self.c.share]
        self.busy_s += sum(run[1] for run in taken)
        return now, 0.0


def simulate(constants: Constants, mode: str, ranks: int, sandboxes: int, steps: int = 40, seed: int = 0) -> dict[str, float]:
    """Return programs an hour, share of the time that GPUs and sandboxes do useful work, and mean staleness in versions.

    Of the last three quarters of the steps: `async` has filled its pipeline by then.
    """
    rng = np.random.default_rng(seed)
    workers = [Rank(constants, sandboxes, rng) for _ in range(ranks)]
    now, ages, skipped = 0.0, [], steps // 4
    for version in range(steps):
        if version == skipped:
            start, ages, busy_s = now, [], sum(rank.busy_s for rank in workers)
        ends, old = zip(*(rank.next_batch(mode, now, version) for rank in workers), strict=True)
        now = max(ends) + constants.update_s
        ages += old
    wall_s, steps = now - start, steps - skipped
    return {
        "programs_per_hour": 3600 * steps * ranks * constants.share / wall_s,
        "gpu_busy": steps * (constants.sample_s + constants.update_s) / wall_s,
        "sandbox_busy": (sum(rank.busy_s for rank in workers) - busy_s) / (wall_s * ranks * sandboxes),
        "staleness": float(np.mean(ages)),
    }


class TimedCollector(SleepCollector):
    """Sampling takes its time, too."""

    sample_s = 0.0

    def sample(self, policy, indices, version):
        time.sleep(self.sample_s * len(indices) / self.sample_batch)
        return super().sample(policy, indices, version)


def measure(constants: Constants, mode: str, sandbox: Sandbox, steps: int = 16, seed: int = 0) -> float:
    """Return programs an hour of the real Stream and sandbox, one rank, of the last three quarters of the steps."""
    collector = TimedCollector(sandbox, draw_durations(constants, np.random.default_rng(seed), constants.share * steps * 20))
    collector.sample_batch, collector.sample_s = constants.share, constants.sample_s
    stream = Stream(collector, mode, batch_size=constants.share, steps=10**6, max_staleness=constants.max_staleness)
    started = 0.0
    for step in range(steps):
        started = time.monotonic() if step <= steps // 4 else started
        stream.next_batch(None, step)
        time.sleep(constants.update_s)
    wall_s = time.monotonic() - started
    for run in stream.runs:
        sandbox.abandon(run.future)
    return 3600 * (steps - steps // 4) * constants.share / wall_s


def check() -> list[dict]:
    """Compare simulation and reality where reality fits on this machine: seconds are hundredfold faster."""
    rows = []
    print(f"\n{'check: programs an hour':28} {'real':>8} {'simulated':>10} {'ratio':>6}")
    constants = Constants(sample_s=0.3, update_s=0.15, run_s=0.6)
    for sandboxes in (4, 16):
        with Sandbox(sandboxes) as sandbox:
            for mode in MODES:
                real = measure(constants, mode, sandbox)
                ours = np.mean([simulate(constants, mode, 1, sandboxes, 16, seed)["programs_per_hour"] for seed in range(20)])
                rows.append({"name": f"check/{mode}/{sandboxes}", "ours": ours, "peer": real, "ratio": ours / real})
                print(f"{mode:8} {sandboxes:3} sandboxes        {real:8.0f} {ours:10.0f} {ours / real:6.2f}", flush=True)
    return rows


def draw(constants: Constants, totals: list[int], grid: dict, nodes: list[int]) -> None:
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    panels = figure.subplots(1, len(nodes))
    for panel, n in zip(panels, nodes, strict=True):
        ranks = n * GPUS_A_NODE
        for mode in MODES:
            curve = [(total, grid[n, total, mode]["programs_per_hour"]) for total in totals if (n, total, mode) in grid]
            panel.loglog(*zip(*curve, strict=True), marker="o", ms=3, label=mode)
        limit = 3600 * ranks * constants.share / (constants.sample_s + constants.update_s)
        panel.axhline(limit, color="grey", lw=0.8, ls=":", label="limit of the GPUs")
        panel.set(title=f"{n} node{'s' * (n > 1)}, {ranks} GPUs", xlabel="sandboxes in all")
    panels[0].set_ylabel("programs an hour")
    panels[0].legend(fontsize=8)
    figure.savefig(ROOT / "docs" / "scale.png", dpi=110)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    for name, default in asdict(Constants()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    constants = Constants(**vars(parser.parse_args(argv)))
    nodes, totals = [1, 8, 64], [10, 30, 100, 300, 1000, 3000, 10_000]
    grid, rows = {}, []
    print(constants)
    print(f"{'':18}" + "".join(f"{mode:^33}" for mode in MODES))
    print(f"{'nodes':>6} {'sandboxes':>10} " + f" {'prog/h':>8} {'GPU':>5} {'sandbox':>8} {'stale':>6}  " * 3)
    for n in nodes:
        ranks = n * GPUS_A_NODE
        for total in (total for total in totals if total >= ranks):
            for mode in MODES:
                grid[n, total, mode] = simulate(constants, mode, ranks, total // ranks)
            line = f"{n:6} {total:10} "
            for s in (grid[n, total, mode] for mode in MODES):
                line += f" {s['programs_per_hour']:8.0f} {s['gpu_busy']:5.0%} {s['sandbox_busy']:8.0%} {s['staleness']:6.2f}  "
            print(line, flush=True)
            rows += [{"name": f"{n}/{total}/{mode}", **grid[n, total, mode]} for mode in MODES]
    draw(constants, totals, grid, nodes)
    print("\nsandboxes a GPU needs for 95% of what more would give, one node:")
    per_gpu = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128)
    for mode in MODES:
        rates = {k: simulate(constants, mode, GPUS_A_NODE, k)["programs_per_hour"] for k in per_gpu}
        enough = next(k for k, rate in rates.items() if rate >= 0.95 * rates[128])
        print(f"  {mode:8} {enough:4}   ({rates[enough]:.0f} programs an hour)")
    print("\nwhat staleness gives, one node, async, 16 sandboxes a GPU:")
    for bound in (0, 1, 2, 4, 8):
        s = simulate(replace(constants, max_staleness=bound), "async", GPUS_A_NODE, 16)
        print(f"  --max-staleness {bound}: {s['programs_per_hour']:8.0f} programs an hour, {s['staleness']:.2f} versions old")
    rows += check()
    print(json.dumps({"bench": "scale", "constants": asdict(constants), "rows": rows,
                      "machine": f"{platform.machine()}, {os.cpu_count()} cores"}))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
