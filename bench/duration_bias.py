"""Two kinds of program, one ten times as slow: what share of a batch is the fast one, by mode of collection and weight?

    python bench/duration_bias.py            a minute; a table, docs/duration_bias.png, then one line of JSON

The policy writes either with probability 1/2, so .500 is unbiased. 32 workers, batches of 32. Ways to fill a batch:

    sync      start 32, wait for all
    async     workers always busy, every finished run is used sooner or later, oldest first
    restart   after each update start anew; the first 32 that finish, the others are dropped
    jitter    restart, each running time drawn within 5% of its kind's
    window    what finishes within 12 s of an update, the others are dropped
    split     each worker's time is split by the policy's probabilities, as the article's formula has it

ess is the effective sample size of ipw, (Σw)² / Σw², as a share of all runs.
"""

import heapq
import json
import platform
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from duration import Window, inverse_inclusion

FAST_S, SLOW_S, WORKERS, BATCH, BATCHES, WINDOW_S = 1.0, 10.0, 32, 32, 400, 12.0
POOLED = 20  # windows that an ipw weight looks back on
WEIGHTS = ("none", "mean", "log", "ipw")


def draw(rng: np.random.Generator, jitter: float = 0.0) -> float:
    """Return how long the next program runs: the policy's choice, up to a factor of 1 ± jitter."""
    run_s = FAST_S if rng.random() < 0.5 else SLOW_S
    return run_s * rng.uniform(1 - jitter, 1 + jitter) if jitter else run_s


def run_window(rng: np.random.Generator, batch: int, length_s: float, jitter: float = 0.0) -> Window:
    """Start on every worker; each goes on with a new program until `batch` have finished or length_s is over."""
    running = [(run_s, 0.0, worker) for worker in range(WORKERS) if (run_s := draw(rng, jitter))]  # end, start, worker
    heapq.heapify(running)
    finished, now = [], 0.0
    while len(finished) < batch and running[0][0] <= length_s:
        now, started, worker = heapq.heappop(running)
        finished.append(now - started)
        heapq.heappush(running, (now + draw(rng, jitter), now, worker))
    end = now if len(finished) == batch else length_s
    dropped = [end - started for _, started, _ in running if started < end]
    return Window(tuple(finished), tuple(dropped))


def collect(mode: str, rng: np.random.Generator) -> list[Window]:
    """Return the batches of a mode, with what was dropped."""
    if mode == "sync":
        return [Window(tuple(draw(rng) for _ in range(BATCH)), ()) for _ in range(BATCHES)]
    if mode in ("restart", "jitter"):
        return [run_window(rng, BATCH, np.inf, 0.05 if mode == "jitter" else 0.0) for _ in range(BATCHES)]
    if mode == "window":
        return [run_window(rng, sys.maxsize, WINDOW_S) for _ in range(BATCHES // 4)]
    if mode == "split":  # n_x ∝ π(x) / Δt_x
        p = (1 / FAST_S) / (1 / FAST_S + 1 / SLOW_S)
        return [Window(tuple(np.where(rng.random(BATCH) < p, FAST_S, SLOW_S)), ()) for _ in range(BATCHES)]
    running, finished = [(draw(rng), started) for started in range(WORKERS)], []  # async: (end, number of the run)
    lengths = [end for end, _ in running]
    heapq.heapify(running)
    while len(finished) < BATCH * BATCHES:
        now, number = heapq.heappop(running)
        finished.append(lengths[number])
        lengths.append(draw(rng))
        heapq.heappush(running, (now + lengths[-1], len(lengths) - 1))
    return [Window(tuple(finished[i : i + BATCH]), ()) for i in range(0, len(finished), BATCH)]


def share_of_fast(windows: list[Window], weight: str) -> tuple[float, float]:
    """Return the share of the weight that fast programs hold over all batches, and the effective share of the runs."""
    fast = total = squares = 0.0
    for i, window in enumerate(windows):
        run_s = np.array(window.finished_s)
        # a batch early in the list looks ahead instead of back
        pool = windows[max(0, i - POOLED + 1) : i] + windows[i + 1 : max(POOLED - i, 0) + i]
        ipw = inverse_inclusion([*pool, window]) if weight == "ipw" else 0
        weights = {"none": np.ones_like(run_s), "mean": run_s, "log": np.log1p(run_s), "ipw": np.array(ipw)}[weight]
        fast, total, squares = fast + weights[run_s < 2 * FAST_S].sum(), total + weights.sum(), squares + weights @ weights
    return fast / total, total**2 / squares / sum(len(window.finished_s) for window in windows)


def simulate(seed: int = 0) -> dict[str, dict[str, float]]:
    """Return the share of the fast program by mode and weight, and `ess` of ipw."""
    shares = {}
    for mode in ("sync", "async", "restart", "jitter", "window", "split"):
        windows = collect(mode, np.random.default_rng(seed))
        measured = {weight: share_of_fast(windows, weight) for weight in WEIGHTS}
        shares[mode] = {weight: share for weight, (share, _) in measured.items()} | {"ess": measured["ipw"][1]}
    return shares


def draw_figure(shares: dict[str, dict[str, float]]) -> None:
    """Draw docs/duration_bias.png."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    panel = figure.subplots()
    for i, weight in enumerate(WEIGHTS):
        panel.bar(np.arange(len(shares)) + 0.2 * (i - 1.5), [row[weight] for row in shares.values()], 0.18, label=weight)
    panel.axhline(0.5, color="black", lw=0.8, ls=":")
    panel.set(xticks=range(len(shares)), xticklabels=shares, ylim=(0, 1), ylabel="weight of the fast program")
    panel.legend(title="weight", fontsize=8, ncols=4)
    figure.savefig(Path(__file__).resolve().parent.parent / "docs" / "duration_bias.png", dpi=110)


def main() -> int:
    shares = simulate()
    draw_figure(shares)
    print(f"share of the fast program; unbiased is .500\n{'':10}" + "".join(f"{name:>8}" for name in (*WEIGHTS, "ess")))
    for mode, row in shares.items():
        print(f"{mode:10}" + "".join(f"{share:8.3f}" for share in row.values()))
    rows = [{"name": f"{mode}/{weight}", "ours": row[weight], "peer": 0.5, "ratio": row[weight] / 0.5}
            for mode, row in shares.items() for weight in WEIGHTS]  # fmt: skip
    print(json.dumps({"bench": "duration_bias", "rows": rows, "machine": platform.machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
