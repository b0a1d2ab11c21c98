"""Train a language model by PPO to write machine-learning programs.

    python train.py --task random-pizza                            # tiny policy on a CPU, Qwen2.5-3B-Instruct with CUDA
    python train.py --task random-pizza --resume runs/random-pizza # go on after a stop, exactly
    torchrun --nproc_per_node 8 train.py --task random-pizza       # data parallel

Reads top to bottom: set-up, the loop. Every knob is in config.py. What a run leaves behind: <run>/config.json, metrics.jsonl,
episodes.jsonl, step_N/ (checkpoints), latest, events of TensorBoard. Then: python eval.py <run>.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that spin while they wait starve the programs

import dataclasses
import json
import shlex
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

import checkpoint
import lora
import memory
import ppo
from checkpoint import UsageError
from config import Config, parse_args, run_main
from duration import describe_mismatch
from lm_instrument import LMInstrumenter
from model import Policy, cache_dir, checkpoint_gradients, context_tok, load_policy, reads_brief_prompts, use_bf16
from prompts import build_prompt, encode_prompt
from ranks import all_max, cores_per_rank, device, finish_processes, gather, init_processes, launch, rank_and_world
from rollout import Collector, ImprovementPool, to_experience
from runlog import RunLog, episode_metrics, write_model_card
from sampler import check_sampler
from sandbox import InfraError, Sandbox, describe_status, usable_cores
from shard import gathered, load_optimizer_state, shard, whole_optimizer_state, whole_weights
from stream import Stream
from tasks import Task, expand_names, load_task
from warmstart import load_warm_policy, warm_start_settings

# ------------------------------------------------------------------------------------------------------------------ set-up


def load_run_tasks(config: Config, run_dir: Path, split: str) -> list[Task]:
    """Return the run's tasks for one split; public files in <run>/public/, of several tasks in folders. Raises UsageError."""
    data_dir = Path(config.data_dir) if config.data_dir else None
    try:
        names, tasks = expand_names(config.task), []
    except ValueError as error:
        raise UsageError(f"--task {config.task}: {error}") from error
    for name in names:
        root = run_dir / "public" / (Path(name).stem if len(names) > 1 else "")
        try:
            tasks.append(load_task(name, root, split, seed=config.seed, salt=checkpoint.load_secret(run_dir),
                                   data_dir=data_dir, time_limit_s=config.time_limit_s))  # fmt: skip
        except (ValueError, OSError) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"the data of {name} cannot be used: {reason}") from error
    return tasks


def open_run(config: Config, is_new: bool) -> Path:
    """Make the run's folder, or find it. Raises UsageError."""
    run_dir = Path(config.run_dir)
    if is_new and (run_dir / "latest").exists():
        raise UsageError(f"--run-dir {run_dir} already holds a run: go on with --resume {run_dir}, or name another folder")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=run_dir).close()
        if is_new:
            checkpoint.write_atomically(run_dir / "launch", launch())
    except OSError as error:
        raise UsageError(f"--run-dir {run_dir} cannot be written ({error}); name another folder") from error
    return run_dir


def load_start(config: Config, tasks: list[Task]) -> Policy:
    """Return the policy that training starts from. Raises UsageError for an unknown model."""
    try:
        if config.max_prompt_tok + config.max_new_tok > (context := context_tok(config.model)):
            raise UsageError(f"--max-prompt-tok {config.max_prompt_tok} and --max-new-tok {config.max_new_tok}: "
                             f"{config.model} reads at most {context} tokens in all")  # fmt: skip
        if config.model in ("tiny", "smollm2"):
            settings = warm_start_settings(config.model, demonstrations=config.demonstrations, memory_gib=config.memory_gib)
            policy = load_warm_policy(tasks, settings).to(device())
        else:
            policy = load_policy(config.model, device())
            try:
                check_sampler(policy, config.max_prompt_tok + config.max_new_tok)
            except ValueError as error:
                raise UsageError(f"--model {config.model}: {error}") from error
        if config.lora_rank:
            lora.add_adapter(policy.lm, config.lora_rank, config.seed)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(
            f"$NANOMLE_CACHE {cache_dir()} cannot be used ({error}); set it to a folder that can be written"
        ) from error
    for task in tasks:
        prompt = build_prompt(task, brief=reads_brief_prompts(config.model), memory_gib=config.memory_gib)
        length = len(encode_prompt(policy.tokenizer, prompt))
        if length > config.max_prompt_tok:
            raise UsageError(f"--max-prompt-tok {config.max_prompt_tok}: the prompt of {task.name} has {length} tokens")
    return policy


def prepare(config: Config, policy: Policy) -> Policy:
    """Let a loaded policy compute as the run does."""
    policy = use_bf16(policy) if config.precision == "bf16" else policy
    return checkpoint_gradients(policy) if config.gradient_checkpointing else policy


def load_policies(config: Config, run_dir: Path, newest: Path) -> tuple[Policy, torch.nn.Module]:
    """Return the policy of a checkpoint and the KL reference: the starting policy, with LoRA the same weights."""
    start = run_dir / "step_0"
    if config.lora_rank:
        policy = prepare(config, checkpoint.load_checkpoint_policy(newest, device(), base=start))
        return shard(policy) if config.shard else policy, lora.AdapterOff(policy)
    policy = prepare(config, checkpoint.load_checkpoint_policy(newest, device()))
    reference = prepare(config, checkpoint.load_checkpoint_policy(start, device()).requires_grad_(False))
    return (shard(policy), shard(reference)) if config.shard else (policy, reference)


def build_optimizer(config: Config, policy: Policy) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in policy.lm.parameters() if p.requires_grad], "base_lr": config.learning_rate},
        {"params": list(policy.value_head.parameters()), "base_lr": config.value_learning_rate},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)


def default_sandboxes(config: Config) -> int:
    """Return how many programs run at once: on all cores of this rank where it waits for them, else on half of them."""
    return max(1, cores_per_rank() // (2 if config.collect != "sync" else 1))


def set_threads(config: Config) -> None:
    """Let torch use the cores; while programs run beside it, only those that they leave: more threads would wait for them."""
    reserved = 0 if config.collect == "sync" else config.sandboxes or default_sandboxes(config)
    torch.set_num_threads(config.threads or max(1, cores_per_rank() - reserved))


def build_sandbox(config: Config) -> Sandbox:
    """Start the sandbox of this rank on its share of the cores; say on rank 0 what protects this machine."""
    cores = usable_cores()[int(os.environ.get("LOCAL_RANK", 0)) :: int(os.environ.get("LOCAL_WORLD_SIZE", 1))]
    sandbox = Sandbox(
        config.sandboxes or default_sandboxes(config), memory_gib=config.memory_gib, clock=config.duration_clock, cores=cores,
        unsafe=config.unsafe_sandbox,
    )  # fmt: skip
    if int(os.environ.get("RANK", 0)) == 0:
        print(describe_status(sandbox))
    return sandbox


def build_collector(
    config: Config, tasks: list[Task], sandbox: Sandbox, secret: bytes, reference: Policy | None = None
) -> Collector:
    """The one protocol of training and evaluation: prompts, limits, rewards; with --instrumenter lm, the reference."""
    pools = {task.name: ImprovementPool() for task in tasks}
    names = ("failure_reward", "milestone_reward", "no_model_penalty", "repetition_penalty")
    rewards = {name: getattr(config, name) for name in names}
    start = Path(config.run_dir) / "step_0"  # a run keeps it; the model that it was made from may be gone
    brief = reads_brief_prompts(str(start) if start.exists() else config.model)
    return Collector(
        tasks, sandbox, seed=config.seed, secret=secret, pools=pools, temperature=config.temperature,
        max_prompt_tok=config.max_prompt_tok, max_new_tok=config.max_new_tok, brief=brief,
        improve_frac=config.improve_frac, memory_gib=config.memory_gib, sample_batch=config.sample_batch,
        reward_options=rewards,
        instrumenter=LMInstrumenter(reference, slots=config.sample_batch) if config.instrumenter == "lm" else None,
        milestone_prints=config.instrumenter != "none",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------- train


@dataclass
class TrainerState:
    """What changes during training beside policy and optimizer; all of it is in every checkpoint."""

    step: int
    kl_coef: float
    pools: dict[str, ImprovementPool]  # by task
    generator: torch.Generator  # order of the minibatches
    guard: ppo.NonFiniteGuard
    streams: list[dict] | None = None  # of every rank, as in the newest checkpoint

    def save(self, run_dir: Path, policy: Policy, optimizer) -> None:
        """Write a checkpoint, on rank 0. A collective."""
        weights, optimizer_state = whole_weights(policy), whole_optimizer_state(policy, optimizer)
        if rank_and_world()[0] > 0:
            return
        pools = {name: pool.state() for name, pool in self.pools.items()}
        state = {"step": self.step, "kl_coef": self.kl_coef, "pools": pools, "streams": self.streams,
                 "generator": self.generator.get_state(), "skipped_in_a_row": self.guard.in_a_row,
                 "optimizer": optimizer_state}  # fmt: skip
        checkpoint.save_checkpoint(run_dir, self.step, policy, state, weights=weights)

    def load(self, state: dict, policy: Policy, optimizer) -> None:
        self.step, self.kl_coef, self.guard.in_a_row = state["step"], state["kl_coef"], state["skipped_in_a_row"]
        for name, pool in self.pools.items():
            pool.load_state(state["pools"][name])
        self.streams = state["streams"]
        self.generator.set_state(state["generator"])
        load_optimizer_state(policy, optimizer, state["optimizer"])


def train(
    config: Config, run_dir: Path, policy: Policy, reference: torch.nn.Module, optimizer, state: TrainerState,
    collector: Collector,
) -> bool:
    """Collect, learn, log, save; return True after the last step, False after Ctrl-C or SIGTERM."""
    rank, world = rank_and_world()
    stream = Stream(collector, config.collect, batch_size=config.batch_size, steps=config.steps,
                    max_staleness=config.max_staleness, rank=rank, world=world)  # fmt: skip
    if state.streams:
        stream.load_state(state.streams)
    log = RunLog(run_dir, state.step, config.steps) if rank == 0 else None
    interrupted, stopping = _stop_after_this_step(), False
    while state.step < config.steps and not stopping:
        started = time.monotonic()
        with gathered(policy, *([reference] if collector.instrumenter else [])):
            batch = stream.next_batch(policy, state.step)
        all_episodes = sorted(gather(batch.episodes), key=lambda e: e.index)
        if not all_episodes:
            raise InfraError("every program of this step ended in an infra_error: is the disk full, are processes limited?")
        collected = time.monotonic()
        with gathered(policy, reference):
            experience = to_experience(
                batch.episodes, policy, reference, temperature=config.temperature, micro_batch_tok=config.micro_batch_tok,
                policy_version=state.step, inverse_inclusion=batch.inverse_inclusion, task_names=list(state.pools),
            )  # fmt: skip
        metrics = update(config, policy, optimizer, experience, state)
        metrics |= {"policy/kl_coef": state.kl_coef, "policy/learning_rate": optimizer.param_groups[0]["lr"]}
        updated = time.monotonic()

        for name, pool in state.pools.items():
            pool.add([e for e in all_episodes if e.task == name])
        state.kl_coef = ppo.update_kl_coefficient(state.kl_coef, metrics["policy/kl_ref"], config.kl_target)
        state.step += 1
        stopping = bool(all_max(torch.tensor([float(bool(interrupted))], device=policy.device)))  # all ranks, or none
        saves = state.step % config.save_every == 0 or state.step == config.steps or stopping
        state.streams = gather([stream.state()]) if saves else None
        if log:
            metrics |= episode_metrics(all_episodes, collector.tasks, config.batch_size, state.step - 1)
            metrics |= {"time/sample_s": batch.sample_s, "time/collect_s": collected - started}
            metrics |= {"time/update_s": updated - collected, "time/rss_mib": rss_mib()}
            log.write(state.step, all_episodes, metrics)
        if saves:
            state.save(run_dir, policy, optimizer)
    return state.step >= config.steps


def update(config: Config, policy: Policy, optimizer, experience: ppo.Experience, state: TrainerState) -> dict[str, float]:
    """One PPO update with this step's schedules: learning rate and entropy weight fall linearly to 0 over the run."""
    remaining = 1 - state.step / config.steps
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * remaining * min(1.0, (state.step + 1) / max(1, config.warmup_steps))
    return ppo.update(
        policy, optimizer, experience, epochs=config.epochs, minibatches=config.minibatches,
        micro_batch_tok=config.micro_batch_tok, gamma=config.gamma, gae_lambda=config.gae_lambda, clip_eps=config.clip_eps,
        value_clip_eps=config.value_clip_eps, value_coef=config.value_coef, kl_coef=state.kl_coef,
        entropy_coef=config.entropy_coef * remaining, max_grad_norm=config.max_grad_norm,
        temperature=config.temperature, duration_weight=config.duration_weight, duration_cap=config.duration_cap,
        advantage=config.advantage, whitening=config.whitening, normalise_returns=config.normalise_returns,
        detach_value=config.detach_value, dual_clip=config.dual_clip, failure_weight=config.failure_weight,
        generator=state.generator, guard=state.guard,
    )  # fmt: skip


def _stop_after_this_step() -> list:
    """Return a list that is empty until Ctrl-C or SIGTERM: the step in progress is finished and saved. A second one stops."""
    interrupted = []  # when

    def on_signal(number, _):
        if not interrupted:
            interrupted.append(time.monotonic())
            name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
            print(f"\n{name}: finishing this step and saving; once more to stop at once", file=sys.stderr, flush=True)
        elif time.monotonic() > interrupted[0] + 1:  # Slurm and torchrun together send it twice
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return interrupted


def print_plan(config: Config, tasks: list[Task]) -> None:
    """--dry-run: what would happen."""
    print(f"{config.steps} steps of {config.batch_size} programs, {config.memory_gib:g} GiB each; model {config.model}")
    print(f"run {config.run_dir}\n\n{memory.table(config, int(os.environ.get('WORLD_SIZE', 1)))}")
    for task in tasks:
        print(f"\ntask {task.name} ({task.data} data), at most {task.time_limit_s:g} s a program; prompt:\n")
        print(build_prompt(task, brief=reads_brief_prompts(config.model), memory_gib=config.memory_gib))
    print(f"\n{json.dumps(dataclasses.asdict(config), indent=2)}")


def print_warnings(config: Config) -> None:
    if config.reward_split == "test":
        print("warning: --reward-split test trains on the labels that eval.py reports on, as the article does", file=sys.stderr)
    if mismatch := describe_mismatch(config.collect, config.duration_weight):
        print(f"warning: --collect {config.collect} --duration-weight {config.duration_weight}: {mismatch}", file=sys.stderr)


def rss_mib() -> float:
    """Return the resident memory of this process, MiB; NaN where there is no /proc."""
    status = Path("/proc/self/statm")
    pages = int(status.read_text().split()[1]) if status.exists() else float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: list[str]) -> int:
    config, resume, dry_run = parse_args(argv)
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            print_plan(config, load_run_tasks(config, Path(folder), "reward"))
            print_warnings(config)
        return 0

    # set-up
    set_threads(config)
    rank = init_processes()
    if rank > 0:
        gather([])  # rank 0 makes the folder, the secret and step_0; the others wait and find them
    run_dir = open_run(config, is_new=resume is None and rank == 0)
    tasks = load_run_tasks(config, run_dir, config.reward_split)
    pools = {task.name: ImprovementPool() for task in tasks}
    state = TrainerState(0, config.kl_coef, pools, torch.Generator().manual_seed(config.seed), ppo.NonFiniteGuard())
    if rank == 0:
        start = load_start(config, tasks) if resume is None else None
        checkpoint.write_atomically(run_dir / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")
        if start:
            state.save(run_dir, start, build_optimizer(config, start))  # step_0: the reference, and the left column of eval.py
        gather([])
        del start
    newest = checkpoint.latest_checkpoint(run_dir)
    policy, reference = load_policies(config, run_dir, newest)
    optimizer = build_optimizer(config, policy)
    state.load(checkpoint.load_trainer_state(newest), policy, optimizer)

    if rank == 0:
        print_warnings(config)

    # the loop
    with build_sandbox(config) as sandbox:
        collector = build_collector(config, tasks, sandbox, checkpoint.load_secret(run_dir), reference)
        collector = dataclasses.replace(collector, pools=pools)
        finished = train(config, run_dir, policy, reference, optimizer, state, collector)
    finish_processes()
    if rank == 0 and finished:
        command = shlex.join([Path(sys.argv[0]).name, *argv])
        write_model_card(checkpoint.latest_checkpoint(run_dir), run_dir, config, tasks, command)
        print(f"done: {run_dir}; next: {os.path.relpath(sys.executable)} eval.py {run_dir}")
    elif rank == 0:
        print(f"train.py: stopped at step {state.step}; go on with: python train.py --resume {run_dir}", file=sys.stderr)
    return 0 if finished else 1


if __name__ == "__main__":
    run_main(main, "from its newest checkpoint --resume goes on; without one (in the warm start) run the same command again")
