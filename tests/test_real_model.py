"""train.py with a Hugging Face directory, as with a model from the hub: whole runs, resumed, on two ranks, tied weights tied.

The model knows two answers by heart, both of which fail, one after its first milestone: enough to learn from.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import ROOT, records, same_secret, train_here
from safetensors.torch import load_file
from test_processes import torchrun
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from model import Policy, load_policy, save_policy
from prompts import build_prompt
from warmstart import encode_example, supervised_loss, train_tokenizer

ANSWERS = ("```python\nimport pandas as pd\npd.nothing\n```", "No program.")


@pytest.fixture(scope="module")
def model(tmp_path_factory, pizza) -> Path:
    """A Llama whose embeddings are tied, with a chat template and a tokenizer that knows the prompt."""
    tokenizer = train_tokenizer([build_prompt(pizza, brief=False), *ANSWERS * 20], 1500)
    tokenizer.chat_template = "{% for m in messages %}Q: {{ m.content }}\n{% endfor %}A:"
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=True, bos_token_id=None,
                         eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, initializer_range=0.1,
                         **shape)  # fmt: skip
    torch.manual_seed(0)
    policy, prompt = Policy(LlamaForCausalLM(config), tokenizer), build_prompt(pizza, brief=False)
    examples = [encode_example(tokenizer, prompt, answer) for answer in ANSWERS]
    optimizer = torch.optim.AdamW(policy.lm.parameters(), lr=1e-2)
    for _ in range(60):
        supervised_loss(policy, examples).backward()
        optimizer.step()
        optimizer.zero_grad()
    directory = tmp_path_factory.mktemp("model") / "llama"
    save_policy(policy, directory)
    return directory


def flags(model: Path, *more) -> list[str]:
    return ["--task", "random-pizza", "--model", str(model), "--steps", "3", "--batch-size", "8", "--minibatches", "1",
            "--max-prompt-tok", "2000", "--max-new-tok", "24", "--save-every", "1", "--learning-rate", "1e-3",
            "--warmup-steps", "0", "--threads", "1", "--sandboxes", "1", *more]  # fmt: skip


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    train_here(*flags(model), "--run-dir", run)
    return run


def test_weights_stay_tied_and_from_pretrained_loads_what_was_learnt(model, whole):
    before, after = load_file(model / "model.safetensors"), load_file(whole / "step_3" / "model.safetensors")
    assert set(before) == set(after) and "lm_head.weight" not in after
    assert not any(torch.equal(before[name], after[name]) for name in before if after[name].ndim == 2)
    lm = AutoModelForCausalLM.from_pretrained(whole / "step_3")
    assert lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
    policy = load_policy(str(whole / "step_3"))
    assert torch.equal(lm(torch.tensor([[5, 6, 7]])).logits, policy(torch.tensor([[5, 6, 7]]))[0])
    assert policy.value_head.weight.any() and policy.tokenizer.chat_template


def test_a_run_of_a_real_model_is_resumed_exactly(model, whole, tmp_path):
    """Two steps of three, stopped as by a crash before the third checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "step_3")
    (run / "latest").write_text("step_2")
    train_here("--resume", run)
    ours, straight = (load_file(r / "step_3" / "model.safetensors") for r in (run, whole))
    assert all(torch.equal(ours[name], straight[name]) for name in straight)
    assert records(run) == records(whole)
    assert records(run)[0]["policy/kl_ref"] < 1e-8 and abs(records(run)[0]["policy/ratio_max"] - 1) < 1e-4


@pytest.mark.parametrize("more", [(), ("--shard", "--lora-rank", "4", "--precision", "bf16")])
def test_two_ranks_learn_what_one_learns(model, whole, more, tmp_path):
    run, alone = tmp_path / "run", whole
    if "bf16" in more:
        alone = tmp_path / "alone"
        same_secret(whole, alone)
        train_here(*flags(model, *more[1:]), "--run-dir", alone)
    same_secret(whole, run)
    done = subprocess.run(torchrun(2, *flags(model, *more), "--run-dir", run), cwd=ROOT, env=os.environ, capture_output=True,
                          text=True, timeout=240)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    ours, straight = (load_file(r / "step_3" / "model.safetensors") for r in (run, alone))
    assert set(ours) == set(straight)
    moved = max((straight[name] - load_file(model / "model.safetensors")[name]).abs().max() for name in straight)
    for name in straight:
        assert (ours[name] - straight[name]).abs().max() < 0.2 * moved, name
    texts = [[e["response_ids"] for e in records(r, "episodes.jsonl")][:8] for r in (run, alone)]
    assert texts[0] == texts[1]
    assert len({e["reward"]["total"] for e in records(run, "episodes.jsonl")}) > 1
