"""The evaluation of one run, piece by piece: what each policy and each baseline makes of each task."""

import contextlib
import statistics
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from baselines import draw_demonstrations, run_demonstrations, run_pipeline
from bestofk import best_index, order_of, summarise
from checkpoint import load_checkpoint_policy, load_secret
from checks import check_program
from config import Config
from model import Policy
from pieces import PROTOCOL, common_dependencies, digest_data, digest_file, digest_weights, load_or_make
from ranks import device
from results import POLICIES
from reward import grade
from rollout import Collector, Episode
from sandbox import InfraError
from tasks import Task, expand_names, find_task, read_published
from tasks.medals import award
from train import build_collector, build_sandbox, load_run_tasks, prepare, set_threads
from warmstart import warm_start_settings


def run_on_test(collector: Collector, task: Task, episodes: list[Episode]) -> list[float | None]:
    """Return the raw score on the private test split of each program that is valid on val; None for the others."""
    futures = [
        collector.sandbox.submit(
            e.program, task.public_dir, time_limit_s=task.time_limit_s, seed=collector.sample_seed(e.index)
        )
        if e.reward.score is not None
        else None
        for e in episodes
    ]
    # reward.grade: a fault of ours ends the evaluation, it is never counted as the program's
    return [None if future is None else grade(task, future.result())[0] for future in futures]


def evaluate_policy(policy: Policy, collector: Collector, test_task: Task | None, n: int) -> tuple[dict, Episode | None]:
    """Return the statistics of n programs on val (and test) of the collector's task, and the episode that is best on val."""
    return score_episodes(collector, test_task, collector.collect(policy, range(n)))


def score_episodes(collector: Collector, test_task: Task | None, episodes: list[Episode]) -> tuple[dict, Episode | None]:
    """The same of episodes that have been run on val; no best one if none is valid. Raises InfraError if there is none."""
    if not episodes:
        raise InfraError("no program could be run")
    result = {"n": len(episodes), "mean_reward": statistics.fmean(e.reward.total for e in episodes)}
    val = [e.reward.score for e in episodes]
    order = [order_of(collector.tasks[0], e.reward) for e in episodes]
    result["val"] = summarise(collector.tasks[0], order, val)
    if test_task is not None:
        result["test"] = summarise(test_task, order, run_on_test(collector, test_task, episodes))
    best = episodes[best_index(order)]
    return result, best if best.reward.score is not None else None


# --------------------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Subject:
    """A run that is to be evaluated, found sound before any work."""

    directory: Path
    config: Config
    names: list[str]  # of its tasks
    checkpoints: dict[str, Path]  # of start and trained


class Evaluation:
    """One run under evaluation. Sandbox and policies are made when the first unfinished piece needs them."""

    def __init__(self, subject: Subject, samples: int, split: str, anew: bool):
        self.subject, self.config, self.samples, self.split, self.anew = subject, subject.config, samples, split, anew
        self.val_tasks = load_run_tasks(self.config, subject.directory, "reward")
        self.test_tasks = (
            load_run_tasks(self.config, subject.directory, "test") if split == "test" else [None] * len(self.val_tasks)
        )
        self.weights = subject.checkpoints
        self.policy: tuple[str, Policy | None] = ("", None)  # the one that is loaded
        self.stack = contextlib.ExitStack()

    def run(self) -> list[dict]:
        """Make what is not finished; return eval.json's entry of each task, and under 'selected' the programs."""
        set_threads(self.config)
        entries = [self.describe(i) for i in range(len(self.val_tasks))]
        with self.stack:
            for who in POLICIES:  # each is loaded once for all tasks
                for i, entry in enumerate(entries):
                    piece = self.piece(i, who)
                    entry[who] = piece["result"] | {"reported": self.reported(i, piece["result"], bool(piece["selected"]))}
                    entry["checks"][who], entry["selected"][who] = piece["checks"], piece["selected"]
            for i, entry in enumerate(entries):
                entry["baselines"]["constant"] = {"reported": self.score(i, self.val_tasks[i].baseline)}
                for who in ("linear", "tuned", "demonstrations"):
                    result = self.piece(i, who)["result"]
                    entry["baselines"][who] = result | {"reported": self.reported(i, result, False)}
        self.policy = ("", None)  # of the runs of a table, one at a time is in memory
        self.__dict__.pop("whole_collector", None)  # its sandbox is closed, and it may hold the reference
        return entries

    def describe(self, i: int) -> dict:
        task, mle_id = self.val_tasks[i], find_task(expand_names(self.config.task)[i]).ID
        return {
            "task": task.name, "data": task.data, "metric": task.metric, "temperature": self.config.temperature,
            "seed": self.config.seed, "samples": self.samples, "split": self.split, "protocol": PROTOCOL,
            "higher_is_better": task.higher_is_better, "published": read_published("published.csv", mle_id) if mle_id else {},
            "checks": {}, "baselines": {}, "selected": {},
        }  # fmt: skip

    def reported(self, i: int, result: dict, may_win: bool) -> dict:
        """Return what the table shows: the score on the reported split of the best program on val, or of the pipeline."""
        shown = result.get(self.split)
        return self.score(i, shown["best"] if isinstance(shown, dict) else shown, may_win)

    def score(self, i: int, score: float | None, may_win: bool = False) -> dict:
        task = self.test_tasks[i] or self.val_tasks[i]
        prize = award(task, score) if may_win else None
        normalised = None if score is None else task.normalise(score)
        return {"score": score, "normalised": normalised, "medal": prize and prize["medal"]}

    # pieces

    def piece(self, i: int, who: str) -> dict:
        make = {"linear": self.make_pipeline, "tuned": self.make_pipeline, "demonstrations": self.make_demonstrations}
        path = self.subject.directory / "eval" / f"{self.val_tasks[i].name}.{who}.json"
        return load_or_make(path, self.depends(i, who), lambda: make.get(who, self.make_policy)(i, who), self.anew)

    def depends(self, i: int, who: str) -> dict:
        found = {"data": self.data_digests[i], "threads": torch.get_num_threads()}
        if who in POLICIES:
            found |= {"policy": self.weights[who].name, "weights": self.weight_digests[who]}
            if self.config.instrumenter == "lm":
                found["reference"] = self.weight_digests["start"]
        elif who == "demonstrations":
            found["mistake_share"] = self.mistake_share
        return self.common | found

    @cached_property
    def common(self) -> dict:
        return common_dependencies(self.config, self.samples, self.split, device())

    @cached_property
    def data_digests(self) -> list[str]:
        files = [find_task(name).__file__ for name in expand_names(self.config.task)]
        splits = zip(files, self.val_tasks, self.test_tasks, strict=True)
        return [digest_file(file) + digest_data([task for task in tasks if task]) for file, *tasks in splits]

    @cached_property
    def weight_digests(self) -> dict[str, str]:
        return {who: digest_weights(directory) for who, directory in self.weights.items()}

    @cached_property
    def mistake_share(self) -> float:
        return warm_start_settings("smollm2" if self.config.model == "smollm2" else "tiny").mistake_share

    @cached_property
    def whole_collector(self) -> Collector:
        run_dir, reference = self.subject.directory, None
        if self.config.instrumenter == "lm":
            reference = prepare(self.config, load_checkpoint_policy(run_dir / "step_0", device()).requires_grad_(False))
        sandbox = self.stack.enter_context(build_sandbox(self.config))
        config = replace(self.config, run_dir=str(run_dir))  # the run may have been moved
        return build_collector(config, self.val_tasks, sandbox, load_secret(run_dir), reference)

    def collector(self, i: int) -> Collector:
        return replace(self.whole_collector, tasks=[self.val_tasks[i]], seed=f"{self.config.seed}/eval", improve_frac=0.0)

    def make_policy(self, i: int, who: str) -> dict:
        print(f"{who}: {self.samples} programs for {self.val_tasks[i].name} from {self.weights[who]} ...", flush=True)
        if self.policy[0] != who:
            self.policy = ("", None)  # first, to free it
            self.policy = (who, prepare(self.config, load_checkpoint_policy(self.weights[who], device())))
        collector = self.collector(i)
        result, best = evaluate_policy(self.policy[1], collector, self.test_tasks[i], self.samples)
        checks = check_program(collector, self.val_tasks[i], best) if best else None
        return {"result": result, "checks": checks, "selected": best and best.program}

    def make_pipeline(self, i: int, who: str) -> dict:
        print(f"{who}: a pipeline for {self.val_tasks[i].name} ...", flush=True)
        val, test = self.val_tasks[i], self.test_tasks[i]
        return {"result": run_pipeline(self.collector(i), val, test, who)}

    def make_demonstrations(self, i: int, who: str) -> dict:
        print(f"{who}: {self.samples} programs for {self.val_tasks[i].name} ...", flush=True)
        collector = self.collector(i)
        try:
            runs = draw_demonstrations(collector, self.samples, self.mistake_share)
        except ValueError as error:  # a schema of a user's own that they do not cover
            return {"result": {"reason": str(error)}}
        return {"result": score_episodes(collector, self.test_tasks[i], run_demonstrations(collector, runs))[0]}
