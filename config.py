"""The configuration of a run: every knob once, its flag, its default by model and machine, and what is refused.

train.py builds its command line from the fields of Config and writes <run>/config.json; eval.py reads that back. Bad input is
a UsageError, raised before any long work: one line on stderr and exit code 2.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

import torch

from checkpoint import UsageError, latest_checkpoint
from duration import COLLECT_MODES, MODES
from model import model_kind
from ranks import launch, restart_count
from sandbox import CLOCKS, InfraError
from smollm2 import find_smollm2
from tasks import expand_names
from warmstart import warm_start_settings


def option(default, help_text: str, choices: tuple | None = None):
    return dataclasses.field(default=default, metadata={"help": help_text, "choices": choices})


@dataclass(frozen=True)
class Config:
    """Every knob of a run. None means: by the kind of model, see DEFAULTS below."""

    # task and model
    task: str = option("random-pizza", "name of the task (python -m tasks list), several with commas, or all: the twelve")
    data_dir: str | None = option(None, "folder of the real data in MLE-bench's layout; without it, the micro twin")
    model: str | None = option(None, "'tiny', 'smollm2', or a Hugging Face causal LM by name or directory")
    lora_rank: int = option(0, "rank of a LoRA adapter on all projections of the layers, with alpha 32; 0: train all weights")
    precision: str | None = option(None, "of matrix products: fp32, or bf16 (trained weights stay fp32); bf16 with CUDA",
                                   ("fp32", "bf16"))  # fmt: skip
    demonstrations: int | None = option(None, "programs of the warm start; for tiny 2400, or 600 per task if more")
    run_dir: str | None = option(None, "folder of the run; runs/<task> if not given")
    seed: int = option(0, "seed of the twin, of sampling and of the updates")
    # collection
    steps: int | None = option(None, "PPO steps")
    batch_size: int | None = option(None, "programs per step, over all ranks")
    temperature: float = option(0.7, "sampling temperature, also of the log-probabilities that are trained on")
    max_prompt_tok: int | None = option(None, "longest prompt, tokens; longer improvement prompts give way to scratch ones")
    max_new_tok: int | None = option(None, "longest response, tokens")
    improve_frac: float = option(0.5, "share of prompts that ask to improve an earlier program")
    sample_batch: int | None = option(None, "programs sampled together (memory and speed only)")
    collect: str = option("sync", "how a batch is filled, see stream.py", COLLECT_MODES)
    max_staleness: int = option(1, "with --collect async: batches sampled ahead of the one learnt from; slow programs age more")
    sandboxes: int | None = option(None, "programs run at once, per rank; its cores if not given, half with async and restart")
    time_limit_s: float | None = option(None, "time limit of a program, seconds; the task's if not given")
    memory_gib: float = option(4.0, "memory limit of a program, GiB")
    duration_clock: str = option("wall", "clock of Δt; cpu is robust against programs that sleep", CLOCKS)
    instrumenter: str = option("ast", "what inserts milestone prints: the syntax tree, or lm: as in the article, the frozen "
                               "starting policy, checked by the syntax tree, which serves where an answer is refused; it "
                               "writes each program once more, and tiny cannot do it; none: no prints, failed programs "
                               "earn no milestones", ("ast", "lm", "none"))  # fmt: skip
    unsafe_sandbox: bool = option(False, "run programs even where the machine cannot keep them from files and processes")
    # reward
    reward_split: str = option("reward", "rows that score the reward; test, as in the article, trains on what eval.py reports",
                               ("reward", "test"))  # fmt: skip
    failure_reward: float = option(-10.0, "reward of a program that fails before its first milestone")
    milestone_reward: float = option(0.1, "reward per milestone that a failed program reached")
    no_model_penalty: float = option(0.5, "taken from the score of a valid program that trains no model")
    repetition_penalty: float = option(0.0, "times the share of repeated lines, taken from the score of a valid program")
    # PPO
    learning_rate: float | None = option(None, "AdamW's, of the backbone, higher with LoRA; falls linearly to 0 over the steps")
    value_learning_rate: float = option(1e-4, "AdamW's, of the value head")
    warmup_steps: int | None = option(None, "steps of linear learning-rate warm-up")
    epochs: int = option(1, "passes over a batch")
    minibatches: int | None = option(None, "optimizer steps per pass")
    gamma: float = option(1.0, "discount per token")
    gae_lambda: float = option(1.0, "GAE's lambda")
    clip_eps: float = option(0.2, "clip range of the ratio")
    value_clip_eps: float = option(0.2, "clip range of the value, in standard deviations of the return")
    value_coef: float = option(0.5, "weight of the value loss")
    entropy_coef: float | None = option(None, "weight of the entropy at the start; decays linearly to 0 over the steps")
    kl_coef: float = option(0.01, "weight of the KL to the starting policy at the start; adaptive")
    kl_target: float | None = option(None, "KL that the adaptive weight aims at, nats per response")
    max_grad_norm: float = option(1.0, "gradient norm is clipped at this")
    duration_weight: str = option("none", "weight of a sample by the seconds its program ran", MODES)
    duration_cap: float | None = option(None, "largest duration weight")
    failure_weight: float = option(1.0, "weight of the policy term of failed programs; below 1 where they drown the valid ones")
    dual_clip: float | None = option(None, "floor of the surrogate of a bad sample, times its advantage; 3 is usual")
    advantage: str = option("gae", "what a token is credited with: GAE of the value head; or group: no value head, the "
                            "program's reward relative to the others of the step with its task and kind of prompt (scratch or "
                            "improve; improvement prompts differ in the earlier program)", ("gae", "group"))  # fmt: skip
    whitening: str = option("isolate", "whitening of GAE's advantages: all, or failed and valid apart", ("global", "isolate"))
    normalise_returns: bool = option(True, "value head predicts returns in units of their running mean and deviation")
    detach_value: bool = option(True, "the value gradient stops at the backbone")
    micro_batch_tok: int | None = option(None, "tokens per forward and backward pass (memory and speed only)")
    gradient_checkpointing: bool | None = option(None, "compute each layer once more in the backward pass, a third slower, "
                                                 "instead of keeping what it needs (memory and speed only)")  # fmt: skip
    # housekeeping
    shard: bool = option(False, "split weights, gradients and optimizer state over the ranks of torchrun (FSDP2)")
    threads: int | None = option(None, "torch threads per rank; cores / ranks if not given")
    save_every: int | None = option(None, "steps between checkpoints")


# What fits the tiny policy and SmolLM2 on two cores, and a language model of some billions of parameters on GPUs.
TINY = {
    "steps": 48,
    "batch_size": 64,
    "max_prompt_tok": 640,
    "max_new_tok": 480,
    "learning_rate": 2.5e-4,
    "warmup_steps": 2,
    "entropy_coef": 0.001,  # more keeps slips alive: one wrong token fails a program
    "kl_target": 12.0,
    "minibatches": 4,
    "save_every": 1,
    "sample_batch": 64,
    "micro_batch_tok": 8192,
    "gradient_checkpointing": False,
}
SMOLLM2 = {
    **TINY,
    "batch_size": 32,
    "max_prompt_tok": 1280,
    "max_new_tok": 768,
    "learning_rate": 2e-5,
    "sample_batch": 16,  # a row's keys and values take 46 kB a token
    "micro_batch_tok": 1024,
}
LANGUAGE_MODEL = {
    "steps": 500,
    "batch_size": 128,
    "max_prompt_tok": 3072,
    "max_new_tok": 1024,
    "learning_rate": 1e-5,
    "warmup_steps": 10,
    "entropy_coef": 0.01,
    "kl_target": 6.0,
    "minibatches": 2,
    "save_every": 10,
    "sample_batch": 64,
    "micro_batch_tok": 8192,
    "gradient_checkpointing": True,
}
DEFAULTS = {"tiny": TINY, "smollm2": SMOLLM2, "other": LANGUAGE_MODEL}


def parse_args(argv: list[str]) -> tuple[Config, Path | None, bool]:
    """Return (config, run to resume or None, dry run?). The flags are the fields of Config."""
    description = "Train a language model by PPO to write machine-learning programs."
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.error = usage_error
    for f in fields(Config):
        kind = next(t for t in (bool, int, float, str) if t.__name__ in str(f.type))
        extra = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind, "choices": f.metadata["choices"]}
        shown = "by model or machine" if f.default is None else f.default
        parser.add_argument(flag(f.name), default=argparse.SUPPRESS, help=f"{f.metadata['help']} ({shown})", **extra)
    parser.add_argument("--resume", metavar="RUN", help="go on with this run from its newest checkpoint")
    parser.add_argument("--dry-run", action="store_true", help="print prompt and settings, make no run")
    given = vars(parser.parse_args(argv))
    resume, dry_run = given.pop("resume"), given.pop("dry_run")
    if resume is None:
        config = resolve(Config(**given))
        made_by, newest = (Path(config.run_dir) / name for name in ("launch", "latest"))
        if restart_count() == 0 or not newest.exists() or not made_by.exists() or made_by.read_text() != launch():
            return config, None, dry_run
        # A rank died, and torchrun --max-restarts runs the same command again: go on with the run that it made itself.
        resume, given = config.run_dir, dataclasses.asdict(config)
    return _resumed_config(Path(resume), given), Path(resume), dry_run


def load_config(run_dir: Path) -> Config:
    """Return a run's configuration, with its folder where it is now. Raises UsageError."""
    try:
        return dataclasses.replace(Config(**json.loads((run_dir / "config.json").read_text())), run_dir=str(run_dir))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{run_dir} has no readable config.json ({error}); name the folder of a run") from error


def _resumed_config(run_dir: Path, given: dict) -> Config:
    """Return the run's own configuration. Only --steps and --[no-]shard may be given anew: train longer, or on other ranks."""
    stored = load_config(run_dir)
    if given.get("data_dir"):
        given["data_dir"] = str(Path(given["data_dir"]).absolute())
    if given.get("task"):
        given["task"] = _with_absolute_files(given["task"])
    changed = [name for name in given if name not in ("steps", "shard") and given[name] != getattr(stored, name)]
    if changed:
        raise UsageError(f"{flag(changed[0])} {given[changed[0]]}: the run has {getattr(stored, changed[0])}; "
                         "a resumed run keeps its settings, only --steps and --shard may change")  # fmt: skip
    done = int(latest_checkpoint(run_dir).name.removeprefix("step_"))
    if given.get("steps", done) < done:
        raise UsageError(f"--steps {given['steps']}: the run has done {done} steps already")
    anew = {name: given[name] for name in ("steps", "shard") if name in given}
    return resolve(dataclasses.replace(stored, **anew))


def _with_absolute_files(task: str) -> str:
    """Return --task so that a task's file is found again on resume, from another folder too."""
    return ",".join(str(Path(part).absolute()) if part.endswith(".py") else part for part in task.split(","))


def resolve(config: Config) -> Config:
    """Fill in what is None by the model and the machine, and refuse what cannot work. Raises UsageError."""
    model = config.model if config.model is not None else ("Qwen/Qwen2.5-3B-Instruct" if torch.cuda.is_available() else "tiny")
    defaults = {**DEFAULTS[model_kind(model)], "model": model}
    if config.lora_rank > 0:  # tiny: the same KL after an update as full training has, dev/LOG.md; ten: see lora.py
        defaults["learning_rate"] *= 5 if model_kind(model) == "tiny" else 10
    defaults["precision"] = "bf16" if torch.cuda.is_available() else "fp32"
    defaults["run_dir"] = f"runs/{','.join(Path(part).stem for part in config.task.split(','))}"
    config = dataclasses.replace(config, **{k: v for k, v in defaults.items() if getattr(config, k) is None})
    for name in ("model", "run_dir", "data_dir"):
        if getattr(config, name) == "":
            raise UsageError(f"{flag(name)} is empty: an unset variable?")
    if config.data_dir:
        config = dataclasses.replace(config, data_dir=str(Path(config.data_dir).absolute()))
    if not config.run_dir.isprintable():
        raise UsageError(f"--run-dir {config.run_dir!r}: a name of printable characters is needed")
    config = dataclasses.replace(config, task=_with_absolute_files(config.task))
    try:
        if config.model == "smollm2":
            find_smollm2()
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        names = expand_names(config.task)
    except ValueError as error:
        raise UsageError(f"--task {config.task}: {error}") from error
    if config.demonstrations is None:  # less leaves a task without valid programs, more leaves PPO nothing to learn
        base = config.model if config.model == "smollm2" else "tiny"
        number = warm_start_settings(base).demonstrations
        config = dataclasses.replace(config, demonstrations=max(number, 600 * len(names)) if base == "tiny" else number)
    for f in fields(Config):  # the command line's were checked by argparse, those of an older run were not
        value, choices = getattr(config, f.name), f.metadata["choices"]
        if choices and value not in choices:
            raise UsageError(f"{flag(f.name)} {value} must be one of {', '.join(choices)}")
    for name, (holds, words) in RULES.items():
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise UsageError(f"{flag(name)} {value} must be {words}")
    if not config.failure_reward + 7 * config.milestone_reward < -1:
        raise UsageError(f"--failure-reward {config.failure_reward} with --milestone-reward {config.milestone_reward} "
                         "lets a failed program earn more than -1, the worst valid score: lower it")  # fmt: skip
    world = int(os.environ.get("WORLD_SIZE", 1))
    if config.shard and world == 1:
        raise UsageError("--shard splits the model over ranks, and here is only one: start train.py by torchrun")
    if world != int(os.environ.get("LOCAL_WORLD_SIZE", world)) and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
        raise UsageError("--max-restarts of torchrun goes on by itself on one node only: on several leave it out, and start "
                         f"again by hand with --resume {config.run_dir}")  # fmt: skip
    if config.instrumenter == "lm" and config.lora_rank:
        raise UsageError("--instrumenter lm needs the starting policy as a model of its own, which --lora-rank does without: "
                         "leave out one of them")  # fmt: skip
    parts = world * config.minibatches
    if config.batch_size % parts:
        raise UsageError(f"--batch-size {config.batch_size} must be a multiple of world size x --minibatches = {parts}; "
                         f"take {parts * max(1, config.batch_size // parts)}")  # fmt: skip
    return config


POSITIVE = (lambda x: 0 < x < float("inf"), "positive")
FRACTION = (lambda x: 0 <= x <= 1, "between 0 and 1")
NOT_NEGATIVE = (lambda x: 0 <= x < float("inf"), "zero or more")
RULES = {
    **dict.fromkeys(("demonstrations", "steps", "batch_size", "max_prompt_tok", "max_new_tok"), POSITIVE),
    **dict.fromkeys(("sample_batch", "sandboxes", "learning_rate"), POSITIVE),
    **dict.fromkeys(("epochs", "minibatches", "clip_eps", "kl_target", "max_grad_norm"), POSITIVE),
    **dict.fromkeys(("value_learning_rate", "duration_cap", "micro_batch_tok", "threads", "save_every"), POSITIVE),
    "dual_clip": (lambda x: 1 < x < float("inf"), "above 1"),
    "value_clip_eps": (lambda x: x > 0, "positive; inf turns the clipping off"),
    "failure_reward": (lambda x: abs(x) < 1e6, "a number above -1e6"),
    "temperature": (lambda x: 0.01 <= x < float("inf"), "at least 0.01: greedy sampling has no gradient"),
    "time_limit_s": (lambda x: 0 < x <= 86_400, "positive, at most a day"),
    "memory_gib": (lambda x: 0 < x <= 10_000, "positive, at most 10,000"),
    "seed": (lambda x: 0 <= x < 2**63, "a whole number below 2^63"),
    **dict.fromkeys(("improve_frac", "gamma", "gae_lambda"), FRACTION),
    **dict.fromkeys(("milestone_reward", "no_model_penalty", "repetition_penalty", "value_coef", "entropy_coef"), NOT_NEGATIVE),
    **dict.fromkeys(("kl_coef", "warmup_steps", "max_staleness", "failure_weight", "lora_rank"), NOT_NEGATIVE),
}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def usage_error(message: str):
    raise UsageError(message)


def run_main(main: Callable[[list[str]], int], way_out: str) -> NoReturn:
    """Run a script and exit: 0 done, 2 bad arguments, 1 anything else, with one line; faults of the code keep their trace."""
    name = Path(sys.argv[0]).name
    for stream in (sys.stdout, sys.stderr):  # a terminal without a sign such as ± must not end hours of work
        stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except (InfraError, FloatingPointError, OSError, KeyboardInterrupt) as error:
        print(f"{name}: {error if str(error) else 'interrupted'}; {way_out}", file=sys.stderr)
        sys.exit(1)
