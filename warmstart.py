"""Warm start of a small policy: demonstrations -> tokenizer (tiny only) -> supervised fine-tuning -> what RL starts from.

    python warmstart.py --task random-pizza        # makes it, or finds it in the cache, and prints a demonstration
    python warmstart.py --task all                 # one policy for the twelve competitions

The result is cached under $NANOMLE_CACHE or ~/.cache/nanomle, keyed by a hash of everything it depends on: the prompt, the
schema, the settings, the sources of the code that makes it, the library versions. It is written aside and renamed, so a
half-written cache is never used.
"""

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from demonstrations import sample_demonstration
from model import Policy, build_tiny, cache_dir, load_policy, save_policy
from ppo import micro_batches
from prompts import build_prompt, encode_prompt
from smollm2 import find_smollm2
from tasks import Task, find_task, load_task, task_names

SOURCES = ("demonstrations.py", "model.py", "prompts.py", "recipes.py", "warmstart.py")
# What a token may span: a piece of a line up to and with `(`, `=` or `,`, so that `scaler.fit_transform(` is one (merges across
# words, as in SuperBPE, 2503.13423). Names of classes stay whole, so that the one that was imported can be copied; digits stand
# alone, so that numbers can vary. A program for random-pizza has some 120 tokens, by words it has 280.
PIECES = r"[A-Z][A-Za-z]{3,}|(?:(?![A-Z][A-Za-z]{3})[^\n\d(=,])+(?:\(|=+|,)?\n?|\d|\n|."


@dataclass(frozen=True)
class WarmStart:
    """Settings of a warm start; these are the tiny policy's."""

    base: str = "tiny"  # tiny: a new model and its tokenizer; smollm2: that model
    demonstrations: int = 2400  # of all tasks together
    improve_share: float = 0.25
    mistake_share: float = 0.9
    plain: bool = False  # one way of writing: the same names, imports at the top, no comments, no functions
    batch_size: int = 8
    micro_batch_tok: int = 8192  # tokens per forward and backward pass: memory only
    learning_rate: float = 5e-3
    muon: bool = True  # on the matrices; else AdamW for all
    vocabulary: int = 4096  # at most; one task needs about 1700
    memory_gib: float = 4.0  # named in the prompts
    seed: int = 0


# Few demonstrations, all of them right and in one way of writing: this model knows Python, and one of them takes it some four
# seconds on two cores. In as many ways as tiny's, as many of them gave 25% valid programs (dev/LOG.md).
SMOLLM2 = WarmStart(
    base="smollm2", demonstrations=240, mistake_share=0.0, plain=True, batch_size=2, micro_batch_tok=2048,
    learning_rate=3e-4, muon=False,
)  # fmt: skip


def warm_start_settings(base: str, **changes) -> WarmStart:
    """Return the settings of the warm start of tiny or smollm2."""
    return replace({"tiny": WarmStart(), "smollm2": SMOLLM2}[base], **changes)


def load_warm_policy(task: Task | Sequence[Task], settings: WarmStart = WarmStart()) -> Policy:  # noqa: B008 (frozen)
    """Return the warm-started policy, from the cache or made now (tiny: a few minutes on two cores).

    Of several tasks it is one policy, with as many demonstrations of each. Raises OSError when the cache cannot be written,
    ValueError for a task that the demonstrations do not cover, and where smollm2 has not been installed.
    """
    tasks = [task] if isinstance(task, Task) else list(task)
    name = tasks[0].name if len(tasks) == 1 else f"{len(tasks)}-tasks"
    target = cache_dir() / f"{settings.base}-{name}-{_cache_key(tasks, settings)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)  # before the work of minutes: it may be refused
        aside = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
        try:
            save_policy(_build(tasks, settings, name), aside)
            aside.rename(target)
        except OSError:
            if not target.exists():  # else another process finished first: its result is the same
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return load_policy(str(target))


def _cache_key(tasks: list[Task], settings: WarmStart) -> str:
    here = Path(__file__).parent
    parts = [build_prompt(task, brief=True, memory_gib=settings.memory_gib) for task in tasks]
    parts += [repr([task.schema for task in tasks]), repr(asdict(settings))]
    parts += [(here / name).read_text() for name in SOURCES]
    parts += [torch.__version__, transformers.__version__, tokenizers.__version__]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(tasks: list[Task], settings: WarmStart, label: str) -> Policy:
    turns = range(settings.demonstrations)  # the tasks take turns
    pairs = [_demonstration(tasks[i % len(tasks)], settings, i // len(tasks)) for i in turns]
    if settings.base == "tiny":
        tokenizer = train_tokenizer([prompt + response for prompt, response in pairs[:2000]], settings.vocabulary)
        policy = build_tiny(tokenizer, settings.seed)
    else:
        policy = load_policy(str(find_smollm2()))
    examples = [encode_example(policy.tokenizer, prompt, response) for prompt, response in pairs]
    optimizers = build_warm_start_optimizers(policy.lm, settings.learning_rate, settings.muon)
    fine_tune(policy, examples, optimizers, settings.batch_size, settings.micro_batch_tok, label)
    return policy


def _demonstration(task: Task, settings: WarmStart, index: int) -> tuple[str, str]:
    rng = random.Random(f"{settings.seed}/{task.name}/{index}")
    earlier, response = sample_demonstration(
        task.schema, rng, improve_share=settings.improve_share, mistake_share=settings.mistake_share, plain=settings.plain
    )
    return build_prompt(task, earlier, brief=True, memory_gib=settings.memory_gib), response


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of `vocabulary` tokens. Any text can be encoded."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<|pad|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<|pad|>", eos_token="<|end|>")


def encode_example(tokenizer, prompt: str, response: str) -> tuple[list[int], int]:
    """Return (token ids of prompt + response + end, number of prompt tokens)."""
    prompt_ids = encode_prompt(tokenizer, prompt)
    response_ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    return [*prompt_ids, *response_ids, tokenizer.eos_token_id], len(prompt_ids)


def supervised_loss(
    policy: Policy, examples: list[tuple[list[int], int]], normaliser: int | None = None
) -> torch.Tensor:
    """Return the summed cross-entropy (nats) of the responses, by their number of tokens, or by normaliser."""
    width = max(len(ids) for ids, _ in examples)
    tokens = torch.full((len(examples), width), policy.tokenizer.pad_token_id or 0)  # (B, T)
    labels = torch.full((len(examples), width), -100)  # (B, T); -100 is ignored
    for row, (ids, prompt_length) in enumerate(examples):
        tokens[row, : len(ids)] = torch.tensor(ids)
        labels[row, prompt_length : len(ids)] = tokens[row, prompt_length : len(ids)]
    tokens, labels = tokens.to(policy.device), labels.to(policy.device)
    hidden = policy.lm.base_model(tokens[:, :-1]).last_hidden_state  # (B, T-1, D)
    responses = labels[:, 1:] != -100  # the head is a third of the work: only where it is needed
    logits = policy.lm.get_output_embeddings()(hidden[responses])  # (tokens of the responses, V)
    return F.cross_entropy(logits.float(), labels[:, 1:][responses], reduction="sum") / (normaliser or responses.sum())


def fine_tune(
    policy: Policy, examples, optimizers: list, batch_size: int, micro_batch_tok: int = 8192, label: str = "the policy"
) -> float:
    """Fine-tune the language model on one pass over the examples; return the mean loss of the last tenth, nats a token.

    For the tiny policy many small steps, with Muon: at equal cost the loss is a third of that of large AdamW batches.
    """
    # Batches of similar length waste little on padding; their order is shuffled.
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]))
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    random.Random(0).shuffle(batches)
    warm_up, cool_down = max(1, min(30, len(batches) // 10)), 0.4 * len(batches)  # steps
    losses = []
    for step, batch in enumerate(tqdm(batches, desc=f"warm start of {label}", unit="batch", mininterval=5)):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["initial_lr"] * min(1, (step + 1) / warm_up, (len(batches) - step) / cool_down)
        lengths = [len(examples[i][0]) for i in batch]
        normaliser, total = sum(len(examples[i][0]) - examples[i][1] for i in batch), 0.0
        for rows in micro_batches(lengths, micro_batch_tok):
            loss = supervised_loss(policy, [examples[batch[row]] for row in rows], normaliser)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(policy.lm.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(total)
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)


def build_warm_start_optimizers(lm: torch.nn.Module, learning_rate: float, muon: bool = True) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers, AdamW for embeddings, biases and norms; or AdamW for all."""
    embedding = lm.get_input_embeddings().weight
    outer = (embedding, lm.get_output_embeddings().weight)
    matrices = [p for p in lm.parameters() if muon and p.ndim == 2 and all(p is not x for x in outer)]
    ids = {id(p) for p in matrices}
    others = [p for p in lm.parameters() if id(p) not in ids]
    optimizers = [torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)]
    if muon:
        optimizers.append(torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["initial_lr"] = group["lr"]
    return optimizers


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--task", default="random-pizza", help="name of the task, or all")
    parser.add_argument("--model", default="tiny", choices=("tiny", "smollm2"))
    args = parser.parse_args(argv)
    names = [name for name in task_names() if find_task(name).ID] if args.task == "all" else [args.task]
    with tempfile.TemporaryDirectory() as root:
        try:
            tasks = [load_task(name, Path(root) / str(i), "reward") for i, name in enumerate(names)]
            policy = load_warm_policy(tasks, warm_start_settings(args.model))
        except (ValueError, OSError) as error:
            print(f"warmstart.py: {error}", file=sys.stderr)
            return 2
    print(f"{sum(p.numel() for p in policy.lm.parameters()):,} parameters, {len(policy.tokenizer)} tokens")
    print(_demonstration(tasks[0], WarmStart(), 0)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
