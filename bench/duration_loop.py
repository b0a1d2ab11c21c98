"""Fast and slow programs on the real loop: how does the policy's share of slow programs move, by mode and weight?

    python bench/duration_loop.py            an hour, half of it asleep; goes on where it stopped; a table, then a line of JSON

A tiny policy is fine-tuned to answer with one of three programs: half the time one that fails, a quarter each a fast and a
slow one (10 times the time; the time is slept, as a stand-in for larger data). Then 20 steps of the loop of train.py:
Stream, Collector, sandbox, ppo.update. Two games:

    equal    fast and slow train the same logistic regression: nothing should move the slow one's share of the valid ones
    better   fast trains a logistic regression, slow boosted trees on two more features: the share should rise

Shares are exact: the probabilities that the policy gives to the programs. Results are kept in docs/duration_loop.json,
figures are drawn from it.
"""

import functools
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from matplotlib.figure import Figure

import ppo
from checkpoint import write_atomically
from config import Config, resolve
from duration import describe_mismatch
from model import Policy, build_tiny, frozen_copy
from prompts import build_prompt
from rollout import Collector, ImprovementPool, to_experience
from sandbox import Sandbox
from stream import Stream
from tasks import load_task
from train import TrainerState, build_optimizer, update
from warmstart import build_warm_start_optimizers, encode_example, supervised_loss, train_tokenizer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "duration_loop.json"
TASK, STEPS, BATCH, SANDBOXES, FAST_S, SLOW_S, SEEDS = "tabular-may-2022", 20, 32, 32, 0.2, 2.0, (0, 1, 2)
FINE_TUNING_STEPS = 600  # at most
# Below train.py's 2.5e-4, since these policies know three programs by heart: at 1e-4 failing is unlearnt within 4 steps,
# and even with sync and none the share moves by .06 to .17 within 20 steps, for noise. dev/LOG.md has the figures.
LEARNING_RATE = 4e-5
PAIRS = {
    "equal": [("sync", "none"), ("sync", "mean"), ("async", "none"), ("async", "mean"),
              ("restart", "none"), ("restart", "mean"), ("restart", "ipw")],
    "better": [("sync", "none"), ("async", "none"), ("restart", "none"), ("restart", "ipw")],
}  # fmt: skip
MODELS = {"linear": ("", "LogisticRegression()"), "boosted": ("""\
for d in (train, test):
    d["s"] = (d.f_02 + d.f_21).abs()
    d["u"] = d.f_27.map(lambda x: len(set(x)))
columns += ["s", "u"]
""", "GradientBoostingClassifier(n_estimators=100, max_depth=2)")}  # fmt: skip
PROGRAM = """\
{plan}
```python
import time
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.ensemble import GradientBoostingClassifier
train = pd.read_csv("train.csv")
test = pd.read_csv("{test_file}")
columns = [f"f_{{i:02}}" for i in range(31) if i != 27]
{features}time.sleep({seconds})
model = {model}
model.fit(train[columns], train["target"])
proba = model.predict_proba(test[columns])[:, 1]
test[["id"]].assign(target=proba).to_csv("submission.csv", index=False)
```
"""


def write_responses(game: str) -> dict[str, str]:
    """Return the three responses of a game: what the policy knows."""
    slow = "linear" if game == "equal" else "boosted"
    parts = {"fails": (FAST_S, MODELS["linear"], "tests.csv"), "fast": (FAST_S, MODELS["linear"], "test.csv")}
    parts["slow"] = (SLOW_S, MODELS[slow], "test.csv")
    return {
        name: PROGRAM.format(plan=f"Plan {name}.", seconds=seconds, test_file=test_file, features=features, model=model)
        for name, (seconds, (features, model), test_file) in parts.items()
    }


@functools.cache
def make_policy(game: str, seed: int) -> Policy:
    """Return a tiny policy, fine-tuned to fail half the time, and to be fast or slow in equal parts of the rest."""
    responses = write_responses(game)
    with tempfile.TemporaryDirectory() as folder:
        prompt = build_prompt(load_task(TASK, Path(folder), "reward"), brief=True)
    tokenizer = train_tokenizer([prompt + text for text in responses.values()], 1024)
    policy = build_tiny(tokenizer, seed)
    examples = [encode_example(tokenizer, prompt, responses[name]) for name in ("fails", "fails", "fast", "slow")]
    optimizers = build_warm_start_optimizers(policy.lm, learning_rate=5e-3)
    for step in range(FINE_TUNING_STEPS):
        if step % 10 == 0 and sum(probabilities(policy, prompt, responses).values()) >= 0.97:
            return policy
        supervised_loss(policy, examples).backward()
        torch.nn.utils.clip_grad_norm_(policy.lm.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (1 - step / FINE_TUNING_STEPS)
            optimizer.step()
            optimizer.zero_grad()
    raise RuntimeError(f"{game}, seed {seed}: the three programs are not known after {FINE_TUNING_STEPS} steps of fine-tuning")


@torch.no_grad()
def probabilities(policy: Policy, prompt: str, responses: dict[str, str]) -> dict[str, float]:
    """Return the probability of each response, exactly."""
    result = {}
    for name, text in responses.items():
        ids, start = encode_example(policy.tokenizer, prompt, text)
        tokens = torch.tensor([ids])  # (1, T)
        mask = torch.arange(len(ids))[None] >= start  # (1, T)
        result[name] = float(ppo.evaluate(policy, tokens, mask, 1.0)[0].sum().exp())
    return result


def run(game: str, collect: str, weight: str, seed: int) -> dict:
    """Train for STEPS steps; return probabilities at every step, what the batches held, and the scores on the test split."""
    config = resolve(Config(task=TASK, model="tiny", collect=collect, duration_weight=weight, steps=STEPS, batch_size=BATCH,
                            temperature=1.0, improve_frac=0.0, seed=seed, learning_rate=LEARNING_RATE))  # fmt: skip
    responses = write_responses(game)
    with tempfile.TemporaryDirectory() as folder, Sandbox(SANDBOXES) as sandbox:
        task, test = (load_task(TASK, Path(folder) / split, split, seed=seed) for split in ("reward", "test"))
        reference = frozen_copy(make_policy(game, seed))
        policy = frozen_copy(reference).requires_grad_(True)
        pools = {TASK: ImprovementPool()}
        options = {"temperature": config.temperature, "max_prompt_tok": 1024, "max_new_tok": 256, "brief": True}
        collector = Collector([task], sandbox, seed=seed, secret=b"bench", pools=pools, improve_frac=0.0, **options)
        stream = Stream(collector, collect, batch_size=BATCH, steps=STEPS, max_staleness=config.max_staleness)
        optimizer = build_optimizer(config, policy)
        state = TrainerState(0, config.kl_coef, pools, torch.Generator().manual_seed(seed), ppo.NonFiniteGuard())
        prompt = build_prompt(task, brief=True)
        seen, counts, started = [probabilities(policy, prompt, responses)], [], time.monotonic()
        for step in range(STEPS):
            batch = stream.next_batch(policy, step)
            counts.append({name: sum(e.response == text for e in batch.episodes) for name, text in responses.items()})
            experience = to_experience(
                batch.episodes, policy, reference, temperature=1.0, policy_version=step,
                micro_batch_tok=config.micro_batch_tok, inverse_inclusion=batch.inverse_inclusion,
            )  # fmt: skip
            metrics = update(config, policy, optimizer, experience, state)
            state.kl_coef = ppo.update_kl_coefficient(state.kl_coef, metrics["policy/kl_ref"], config.kl_target)
            state.step += 1
            seen.append(probabilities(policy, prompt, responses))
        wall_s = time.monotonic() - started
        scores = {}
        for name in ("fast", "slow"):
            program = responses[name].split("```python\n")[1].split("```")[0]
            scores[name] = test.grade(sandbox.run(program, test.public_dir).submission)
    return {"game": game, "collect": collect, "weight": weight, "seed": seed, "probabilities": seen, "counts": counts,
            "test_scores": scores, "wall_s": wall_s}  # fmt: skip


def slow_share(result: dict) -> np.ndarray:
    """Return the slow program's share of the valid ones, before each step and after the last, (STEPS + 1,)."""
    return np.array([p["slow"] / (p["slow"] + p["fast"]) for p in result["probabilities"]])


def score_on_test(result: dict) -> float:
    """Return the mean score on the test split of the valid programs that the trained policy writes."""
    share = slow_share(result)[-1]
    return share * result["test_scores"]["slow"] + (1 - share) * result["test_scores"]["fast"]


def draw(results: list[dict], game: str) -> None:
    """Draw docs/duration_loop_GAME.png: shares by step, a panel per mode, mean and range over seeds."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for panel, mode in zip(panels, ("sync", "async", "restart"), strict=True):
        for weight in ("none", "mean", "log", "ipw"):
            curves = [slow_share(r) for r in results if (r["game"], r["collect"], r["weight"]) == (game, mode, weight)]
            if curves:
                curves = np.stack(curves)  # (seeds, steps + 1)
                (line,) = panel.plot(curves.mean(0), label=weight, lw=3 if not describe_mismatch(mode, weight) else 1.2)
                panel.fill_between(range(curves.shape[1]), curves.min(0), curves.max(0), color=line.get_color(), alpha=0.15)
        panel.axhline(0.5, color="grey", lw=0.6, ls=":")
        panel.set(title=f"--collect {mode}", xlabel="PPO step", ylim=(0, 1))
        panel.legend(title="duration weight", fontsize=8)
    panels[0].set_ylabel("slow share of the valid programs")
    figure.savefig(ROOT / "docs" / f"duration_loop_{game}.png", dpi=110)


def main() -> int:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    done = {(r["game"], r["collect"], r["weight"], r["seed"]) for r in results}
    torch.set_num_threads(1)  # the other core is the programs'
    keys = [(game, *pair, seed) for game, pairs in PAIRS.items() for pair in pairs for seed in SEEDS]
    for key in sorted(keys, key=lambda key: key[2] == "mean"):  # what is recommended, and what it is compared with, first
        if key not in done:
            results.append(run(*key))
            write_atomically(RESULTS, json.dumps(results) + "\n")
    rows = []
    print(f"{'game':8} {'collect':8} {'weight':7} {'slow at start':>14} {'at the end':>13} {'valid':>6} {'test score':>14}")
    for game, pairs in PAIRS.items():
        draw(results, game)
        for collect, weight in pairs:
            own = [r for r in results if (r["game"], r["collect"], r["weight"]) == (game, collect, weight)]
            start, end = (np.array([slow_share(r)[i] for r in own]) for i in (0, -1))
            valid = np.mean([1 - r["probabilities"][-1]["fails"] for r in own])
            score = np.array([score_on_test(r) for r in own])
            print(f"{game:8} {collect:8} {weight:7} {start.mean():7.2f} ± {start.std(ddof=1):.2f} {end.mean():6.2f} ± "
                  f"{end.std(ddof=1):.2f} {valid:6.2f} {score.mean():6.3f} ± {score.std(ddof=1):.3f}")  # fmt: skip
            rows.append({"name": f"{game}/{collect}/{weight}", "ours": end.tolist(), "peer": start.tolist(),
                         "ratio": float(end.mean() / start.mean())})  # fmt: skip
    print(json.dumps({"bench": "duration_loop", "rows": rows, "machine": f"{platform.machine()}, {os.cpu_count()} cores"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
