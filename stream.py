"""Which episodes make up a batch. Programs run for milliseconds to minutes, so how a batch is filled decides what is learnt.

    sync     sample a batch, wait for all of its programs
    async    sample up to max_staleness batches ahead; while those programs run, the policy learns from the oldest that
             have ended. Every program is used sooner or later: a slow one from an older policy (ppo.policy_loss corrects)
    restart  sandboxes stay busy with programs of this policy until enough have ended; the others are dropped

async with max_staleness 0 is sync. docs/duration.md tells what each does to slow programs, and duration.py how it is weighted.
"""

import math
import time
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import asdict, dataclass

from duration import Window, inverse_inclusion
from model import Policy
from rollout import Collector, Episode, Run

POOLED_WINDOWS = 20  # that inverse_inclusion looks back on: the policy is about the same over them


@dataclass(frozen=True)
class Batch:
    """One rank's episodes, in the order of their indices, each with 1 / P(collected)."""

    episodes: list[Episode]
    inverse_inclusion: list[float]
    sample_s: float = 0.0  # of the time that it took, seconds that went into sampling


class Stream:
    """One rank's share of the batches. Its n-th sample has the global index of the same sample of a single rank."""

    def __init__(self, collector: Collector, mode: str, *, batch_size: int, steps: int, max_staleness=0, rank=0, world=1):
        self.collector, self.mode, self.steps = collector, mode, steps
        self.max_staleness = max_staleness if mode == "async" else 0
        self.batch_size, self.share, self.rank, self.world = batch_size, batch_size // world, rank, world
        self.sampled, self.runs, self.windows, self.sample_s = 0, [], [], 0.0

    def next_batch(self, policy: Policy, version: int) -> Batch:
        """Return `share` finished runs, those left out that failed by our own fault. `version` counts the updates so far."""
        self.sample_s = 0.0
        if self.mode == "restart":
            return self._first_to_finish(policy, version)
        # A run is only started if it can be used in time; one that was started is never dropped.
        admitted = min(version + 1 + self.max_staleness, self.steps) * self.share
        while self.sampled < admitted:
            for run in self._sample(policy, admitted - self.sampled, version):
                self.collector.start(run)
                self.runs.append(run)
        self._wait(lambda: sum(run.future.done() for run in self.runs) >= self.share)
        taken = [run for run in self.runs if run.future.done()][: self.share]  # oldest first
        self.runs = [run for run in self.runs if run not in taken]
        return Batch(episodes := self.collector.finish(taken), [1.0] * len(episodes), self.sample_s)

    def _sample(self, policy: Policy, count: int, version: int) -> list[Run]:
        """Sample the next runs, as many as fit together in memory."""
        count = min(count, self.collector.sample_batch)
        numbers = range(self.sampled, self.sampled + count)
        self.sampled += count
        indices = [n // self.share * self.batch_size + self.rank * self.share + n % self.share for n in numbers]
        started = time.monotonic()
        runs = self.collector.sample(policy, indices, version)
        self.sample_s += time.monotonic() - started
        return runs

    def _wait(self, enough) -> None:
        while not enough():
            wait([run.future for run in self.runs if not run.future.done()], return_when=FIRST_COMPLETED)

    def _first_to_finish(self, policy: Policy, version: int) -> Batch:
        waiting, workers = [], self.collector.sandbox.workers
        # ended_at is set right after future.done(): a run counts once both hold
        while sum(run.ended_at < math.inf for run in self.runs) < self.share:
            waiting = waiting or self._sample(policy, self.share, version)
            free = workers - sum(run.ended_at == math.inf for run in self.runs)
            for run in waiting[:free]:
                self.collector.start(run)
            self.runs, waiting = self.runs + waiting[:free], waiting[free:]
            self._wait(lambda: sum(run.ended_at == math.inf for run in self.runs) < workers)
        in_order = sorted(self.runs, key=lambda run: run.ended_at)  # those that still run come last
        taken, dropped, self.runs = in_order[: self.share], in_order[self.share :], []
        end = taken[-1].ended_at
        for run in dropped:
            if run.ended_at == math.inf:
                self.collector.sandbox.abandon(run.future)
        ran_s = tuple(max(run.ended_at - run.started_at, 1e-6) for run in taken)
        window = Window(ran_s, tuple(max(end - run.started_at, 1e-6) for run in dropped))
        self.windows = [*self.windows, window][-POOLED_WINDOWS:]
        inverse = {run.index: w for run, w in zip(taken, inverse_inclusion(self.windows), strict=True)}
        episodes = self.collector.finish(sorted(taken, key=lambda run: run.index))
        return Batch(episodes, [inverse[e.index] for e in episodes], self.sample_s)

    def state(self) -> dict:
        """Return what a resume needs: programs that were sampled and not yet used run again."""
        windows = [asdict(window) for window in self.windows]
        return {"sampled": self.sampled, "runs": [run.state() for run in self.runs], "windows": windows}

    def load_state(self, states: list[dict]) -> None:
        """Go on from the states of all ranks, of which there may have been more or fewer than now."""
        # indices come in blocks of a batch, shared out over the ranks: go on after the last block that any rank began
        blocks = max(math.ceil(state["sampled"] / (self.batch_size // len(states))) for state in states)
        self.sampled = blocks * self.share
        windows = [w for step in zip(*(state["windows"] for state in states), strict=True) for w in step]
        windows = windows[len(windows) % self.world + self.rank :: self.world][-POOLED_WINDOWS:]
        self.windows = [Window(**{k: tuple(v) for k, v in w.items()}) for w in windows]
        runs = sorted((run for state in states for run in state["runs"]), key=lambda run: run["index"])
        self.runs = [Run.from_state(run) for run in runs[self.rank :: self.world]]  # as many on every rank
        for run in self.runs:
            self.collector.start(run)
