"""Programs per hour of asynchronous against synchronous collection, by how long the programs run.

    python bench/collect.py            4 minutes; a table, then one line of JSON

The programs sleep in the real sandbox, 16 at once; sampling and learning take no time here. Both modes get the same programs in
the same order. The mean is 1 s for each kind: constant, uniform from 0 to 2 s, and long-tailed (lognormal, sigma 1.5, cut).
"""

import json
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rollout import Run
from sampler import Generation
from sandbox import Sandbox
from stream import Stream

SANDBOXES, BATCH, STEPS, STALENESS = 16, 32, 12, 2


class SleepCollector:
    """What Stream needs of a collector: run number i sleeps durations_s[i]."""

    sample_batch = BATCH

    def __init__(self, sandbox: Sandbox, durations_s: np.ndarray):
        self.sandbox, self.durations_s = sandbox, durations_s

    def sample(self, policy, indices, version) -> list[Run]:
        programs = {i: f"import time; time.sleep({self.durations_s[i]:.3f})" for i in indices}
        return [Run(i, "scratch", [], Generation([], [], "stop"), "", program, version) for i, program in programs.items()]

    def start(self, run: Run) -> None:
        run.started_at = time.monotonic()
        run.future = self.sandbox.submit(run.program, None)
        run.future.add_done_callback(lambda _: setattr(run, "ended_at", time.monotonic()))

    def finish(self, runs: list[Run]) -> list[Run]:
        assert all(run.future.result().status == "ok" for run in runs)
        return runs


def draw(kind: str) -> np.ndarray:
    """Return seconds for every run, of mean 1."""
    rng, n = np.random.default_rng(0), BATCH * STEPS
    if kind == "long tail":
        drawn = np.minimum(rng.lognormal(0, 1.5, n), 15 * np.exp(1.5**2 / 2))
        return drawn / drawn.mean()
    return np.ones(n) if kind == "constant" else rng.uniform(0, 2, n)


def programs_per_hour(sandbox: Sandbox, mode: str, durations_s: np.ndarray) -> float:
    collector = SleepCollector(sandbox, durations_s)
    stream = Stream(collector, mode, batch_size=BATCH, steps=STEPS, max_staleness=STALENESS)
    started = time.monotonic()
    done = sum(len(stream.next_batch(None, step).episodes) for step in range(STEPS))
    return 3600 * done / (time.monotonic() - started)


def main() -> int:
    rows = []
    print(f"{'programs an hour':16} {'sync':>9} {'async':>9} {'ratio':>7}   the sandboxes' limit")
    with Sandbox(SANDBOXES) as sandbox:
        for kind in ("constant", "uniform", "long tail"):
            durations_s = draw(kind)
            peer, ours = (programs_per_hour(sandbox, mode, durations_s) for mode in ("sync", "async"))
            rows.append({"name": kind, "ours": ours, "peer": peer, "ratio": ours / peer})
            limit = 3600 * SANDBOXES / durations_s.mean()
            print(f"{kind:16} {peer:9.0f} {ours:9.0f} {ours / peer:7.2f}   {limit:.0f}", flush=True)
    print(json.dumps({"bench": "collect", "rows": rows, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
