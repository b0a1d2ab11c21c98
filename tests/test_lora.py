"""lora.py: starts as the base, trains the adapter only, its base is the reference; PEFT's files, exact resume."""

import dataclasses
import json

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from test_sampler import KINDS, PROMPTS, build, sample
from test_shard import learn, small_policy
from toy import SETTINGS, close, rows_of, sample_experience, spawn_two_ranks
from transformers import AutoModelForCausalLM

import lora
import ppo
import train
from checkpoint import UsageError, load_checkpoint_policy, load_trainer_state, save_checkpoint
from config import LANGUAGE_MODEL, TINY, Config, parse_args
from decoder import Decoder
from model import frozen_copy, load_policy, model_kind, save_policy
from ranks import finish_processes
from shard import gathered, load_optimizer_state, shard, whole_optimizer_state, whole_weights

TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10]])
CONFIG = Config(lora_rank=4, learning_rate=1e-2)
WITH_LINEARS = [kind for kind in KINDS if "gpt2" not in kind]


def adapted(policy, rank=4, spread=0.1):
    """The policy with an adapter, B not zero unless spread is."""
    lora.add_adapter(policy.lm, rank, seed=0)
    for layer in lora.adapters(policy).values():
        torch.nn.init.normal_(layer.lora_B.weight, std=spread)
    return policy


def learnt(policy, optimizer, steps=1, seed=1):
    for step in range(steps):
        experience = sample_experience(policy, seed=seed + step)
        generator = torch.Generator().manual_seed(seed)
        ppo.update(policy, optimizer, experience, **SETTINGS, detach_value=True, generator=generator)
    return policy


def test_at_the_start_the_policy_is_the_base_bit_for_bit(policy):
    before = policy(TOKENS)
    lora.add_adapter(policy.lm, 4, seed=0)
    for ours, base, reference in zip(policy(TOKENS), before, lora.AdapterOff(policy)(TOKENS), strict=True):
        assert torch.equal(ours, base) and torch.equal(ours, reference)
    for layer in lora.adapters(policy).values():
        assert torch.equal(layer.weight, layer.base_layer.weight) and layer.lora_A.weight.any()


def test_the_seed_alone_decides_the_adapter(policy):
    drawn, state = [], torch.get_rng_state()
    for seed in (0, 0, 1):
        lora.add_adapter(policy.lm, 4, seed)
        drawn.append(next(iter(lora.adapters(policy).values())).lora_A.weight)
        lora.merge(policy)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", WITH_LINEARS)
def test_every_projection_of_the_layers_is_adapted_and_nothing_else(kind, tokenizer):
    policy = adapted(build(kind, tokenizer))
    names = {name.rpartition(".")[2] for name in lora.adapters(policy)}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(lora.adapters(policy)) == 7 * 2
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("value_head.") for name in trained) and len(trained) == 2 * 14 + 2


def test_a_model_without_linear_layers_is_refused(tokenizer):
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no linear layers that LoRA could adapt: leave out --lora-rank"):
        lora.add_adapter(build("gpt2", tokenizer).lm, 4, seed=0)


def test_an_update_changes_adapter_and_value_head_and_leaves_the_reference_the_base(policy):
    base = frozen_copy(policy)
    lora.add_adapter(policy.lm, 4, seed=0)
    reference = lora.AdapterOff(policy)
    assert not list(reference.parameters()) and len(list(reference.modules())) == 1  # no copy, and nothing to shard or train
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    optimizer = train.build_optimizer(CONFIG, policy)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2 * 14 + 2
    learnt(policy, optimizer, steps=2)
    changed = {name for name, x in policy.state_dict().items() if not torch.equal(x, before[name])}
    statistics = {"value_mean", "value_std"}
    assert changed - statistics == {name for name, p in policy.named_parameters() if p.requires_grad}
    assert torch.equal(reference(TOKENS)[0], base(TOKENS)[0])
    assert not torch.allclose(policy(TOKENS)[0], base(TOKENS)[0])  # and the adapter is on again
    mask = torch.ones_like(TOKENS, dtype=torch.bool).index_fill(1, torch.tensor([0]), False)
    close(*(ppo.evaluate(p, TOKENS, mask, 0.7)[0] for p in (reference, base)), atol=0)


def test_the_adapter_learns_what_its_gradient_by_the_merged_weights_says(policy):
    """An independent derivation: dL/dA = s Bᵀ G and dL/dB = s G Aᵀ, G the gradient of the plain model's weight."""
    adapted(policy)
    plain = lora.merge(frozen_copy(policy))
    for p in (policy, plain):
        p(TOKENS)[0].square().mean().backward()
    for name, layer in lora.adapters(policy).items():
        gradient, scale = plain.get_submodule(name).weight.grad, lora.ALPHA / 4
        close(layer.lora_A.weight.grad, scale * layer.lora_B.weight.T @ gradient, atol=1e-4)
        close(layer.lora_B.weight.grad, scale * gradient @ layer.lora_A.weight.T, atol=1e-4)


@pytest.mark.parametrize("kind", WITH_LINEARS)
def test_the_sampler_has_the_logprobs_of_a_plain_forward(kind, tokenizer):
    policy = adapted(build(kind, tokenizer), spread=0.02)
    base = lora.AdapterOff(policy)
    assert Decoder.understands(policy)
    rows = [0, 1, 2, 0, 1, 2, 1]
    for prompt, made in zip(rows, sample(policy, rows, list(range(7)), slots=3), strict=True):
        tokens = torch.tensor([PROMPTS[prompt] + made.ids])
        mask = torch.arange(tokens.shape[1])[None] >= len(PROMPTS[prompt])
        logprobs, others = (ppo.evaluate(p, tokens, mask, 0.7)[0][mask] for p in (policy, base))
        assert (logprobs - torch.tensor(made.logprobs)).abs().max() < 1e-5 < (logprobs - others).abs().max()


def test_a_merged_policy_is_plain_and_equal(policy):
    names = [name for name, _ in policy.named_parameters()]
    logits = adapted(policy)(TOKENS)[0]
    assert lora.merge(policy) is policy
    assert [name for name, _ in policy.named_parameters()] == names and all(p.requires_grad for p in policy.parameters())
    close(policy(TOKENS)[0], logits, atol=1e-4)
    assert lora.merge(policy) is policy  # nothing left to do


def test_a_checkpoint_loads_as_a_plain_model_and_with_its_adapter_apart(policy, tmp_path):
    save_policy(policy, tmp_path / "step_0")
    policy = adapted(load_policy(str(tmp_path / "step_0")))
    torch.nn.init.normal_(policy.value_head.weight)
    policy.value_mean.fill_(-3.0)
    directory = save_checkpoint(tmp_path, 5, policy, {})
    apart = load_checkpoint_policy(directory, "cpu", base=tmp_path / "step_0")
    assert policy.state_dict().keys() == apart.state_dict().keys()
    assert all(torch.equal(x, apart.state_dict()[name]) for name, x in policy.state_dict().items())
    assert [p.requires_grad for p in apart.parameters()] == [p.requires_grad for p in policy.parameters()]

    plain = AutoModelForCausalLM.from_pretrained(directory)
    assert not lora.adapters(plain) and plain.get_input_embeddings().weight is plain.get_output_embeddings().weight
    close(plain(TOKENS).logits, policy(TOKENS)[0], atol=1e-4)
    from_peft = load_policy(str(directory / "adapter"))  # the base that it names, merged
    for name, x in lora.merge(policy).lm.state_dict().items():
        assert torch.equal(x, plain.state_dict()[name]) and torch.equal(x, from_peft.lm.state_dict()[name]), name


def test_the_files_are_those_of_peft(policy, tmp_path):
    save_policy(adapted(policy), tmp_path, base="some/model")
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.1.self_attn.k_proj"
    assert len(weights) == 28 and weights[f"{prefix}.lora_A.weight"].shape == (4, 32)
    assert weights[f"{prefix}.lora_B.weight"].shape == (16, 4)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text()) == {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": True, "r": 4, "lora_alpha": 32, "lora_dropout": 0.0,
        "bias": "none", "base_model_name_or_path": "some/model",
        "target_modules": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"), ({"r": 3}, "rank 3"), ({"bias": "all"}, "bias"),
     ({"base_model_name_or_path": "/nonexistent"}, "/nonexistent")],
)  # fmt: skip
def test_an_adapter_that_is_not_plain_lora_is_refused_in_one_line(policy, tmp_path, change, words):
    save_policy(policy, tmp_path / "base")
    save_policy(adapted(policy), tmp_path / "run", base=tmp_path / "base")
    path = tmp_path / "run" / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words) as error:
        load_policy(str(path.parent))
    assert "\n" not in str(error.value)


def new_run(policy, run_dir, **options):
    """A run's first checkpoint, as train.main makes it, and what is loaded from there."""
    config = dataclasses.replace(CONFIG, **options)
    save_policy(policy, run_dir / "start")
    start = load_policy(str(run_dir / "start"))
    lora.add_adapter(start.lm, config.lora_rank, config.seed)
    state = train.TrainerState(0, 0.01, {}, torch.Generator(), ppo.NonFiniteGuard())
    state.save(run_dir, start, train.build_optimizer(config, start))
    return config, state, *resumed(config, run_dir)


def resumed(config, run_dir):
    newest = train.checkpoint.latest_checkpoint(run_dir)
    policy, reference = train.load_policies(config, run_dir, newest)
    optimizer = train.build_optimizer(config, policy)
    load_optimizer_state(policy, optimizer, load_trainer_state(newest)["optimizer"])
    return policy, reference, optimizer


def test_a_run_that_is_resumed_goes_on_bit_for_bit(policy, tmp_path):
    config, state, straight, reference, optimizer = new_run(policy, tmp_path)
    assert torch.equal(reference(TOKENS)[0], policy(TOKENS)[0]) and torch.equal(straight(TOKENS)[0], policy(TOKENS)[0])
    learnt(straight, optimizer, 2)
    state.step = 2
    state.save(tmp_path, straight, optimizer)
    moments = load_trainer_state(tmp_path / "step_2")["optimizer"]["state"]
    assert len(moments) == 30 and not any("base_layer" in name or "embed" in name for name in moments)
    learnt(straight, optimizer, 2, seed=3)

    other, reference, optimizer = resumed(config, tmp_path)
    assert torch.equal(reference(TOKENS)[0], policy(TOKENS)[0])  # of step_0, not of what step_2 has merged
    learnt(other, optimizer, 2, seed=3)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in straight.state_dict().items())


@pytest.mark.parametrize("harm", ["cut", "missing"])
def test_a_broken_adapter_is_refused_in_one_line(policy, tmp_path, harm):
    config = new_run(policy, tmp_path)[0]
    path = tmp_path / "step_0" / "adapter" / "adapter_model.safetensors"
    path.write_bytes(b"\0" * 100) if harm == "cut" else path.unlink()
    for load in (lambda: resumed(config, tmp_path), lambda: load_policy(str(path.parent))):
        with pytest.raises(ValueError, match=r"step_0.*cannot be loaded|no causal language model could be loaded") as error:
            load()
        assert "\n" not in str(error.value)


def test_a_run_from_a_lora_checkpoint_has_that_as_its_reference(policy, tmp_path):
    _, state, first, _, optimizer = new_run(policy, tmp_path / "first")
    learnt(first, optimizer, 2)
    state.step = 2
    state.save(tmp_path / "first", first, optimizer)
    for start in (tmp_path / "first" / "step_2", tmp_path / "first" / "step_2" / "adapter"):
        second, reference, _ = new_run(load_policy(str(start)), tmp_path / f"second-{start.name}", lora_rank=2)[2:]
        close(reference(TOKENS)[0], first(TOKENS)[0], atol=1e-4)
        assert torch.equal(reference(TOKENS)[0], second(TOKENS)[0])
        assert not torch.allclose(reference(TOKENS)[0], policy(TOKENS)[0], atol=1e-2)
    assert model_kind(str(start)) == "other"


def test_bad_ranks_are_refused_and_the_default_learning_rate_is_higher(tmp_path):
    for rank in ("-1", "two"):
        with pytest.raises(UsageError, match=f"--lora-rank.*{rank}"):
            train.main(["--lora-rank", rank, "--run-dir", str(tmp_path / "run")])
    with pytest.raises(UsageError, match=r"--instrumenter lm.*--lora-rank"):
        parse_args(["--model", "some/model", "--lora-rank", "8", "--instrumenter", "lm"])
    rates = [parse_args(["--model", "some/model", *args])[0].learning_rate for args in
             ([], ["--lora-rank", "8"], ["--lora-rank", "8", "--learning-rate", "3e-5"])]  # fmt: skip
    assert rates == pytest.approx([LANGUAGE_MODEL["learning_rate"], 10 * LANGUAGE_MODEL["learning_rate"], 3e-5])
    assert parse_args(["--model", "tiny", "--lora-rank", "8"])[0].learning_rate == pytest.approx(5 * TINY["learning_rate"])


def run_rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    whole, policy = adapted(small_policy()), shard(adapted(small_policy()))
    reference, tokens = lora.AdapterOff(policy), torch.arange(4)[None]
    with gathered(policy, reference), torch.inference_mode():
        for _ in range(1 + rank):  # ranks score differently much
            close(policy(tokens)[0], whole(tokens)[0])
            close(reference(tokens)[0], small_policy()(tokens)[0])
        close(lora.adapters(policy)["lm.model.layers.0.mlp.up_proj"].weight, whole.lm.model.layers[0].mlp.up_proj.weight)
    experience = rows_of(sample_experience(adapted(small_policy())), slice(0, 6) if rank == 0 else slice(0))
    optimizer, _ = learn(policy, experience)
    result = {"weights": whole_weights(policy), "optimizer": whole_optimizer_state(policy, optimizer)}
    torch.save(result, f"{directory}/rank{rank}.pt")
    dist.barrier()
    fresh, saved = torch.optim.AdamW(policy.parameters(), lr=1e-2), torch.load(f"{directory}/rank0.pt")["optimizer"]
    load_optimizer_state(policy, fresh, saved)
    finish_processes()


def test_two_sharded_ranks_learn_what_one_process_learns(tmp_path):
    result = spawn_two_ranks(run_rank, tmp_path)[0]
    policy = adapted(small_policy())
    optimizer, _ = learn(policy, sample_experience(adapted(small_policy())))
    weights = dict(policy.lm.named_parameters())
    assert result["weights"].keys() == weights.keys()
    for name, x in result["weights"].items():
        close(x, weights[name].detach(), atol=1e-4)
    ours = whole_optimizer_state(policy, optimizer)["state"]
    assert result["optimizer"]["state"].keys() == ours.keys()
    for name, x in lora.plain_weights(policy.lm, result["weights"]).items():
        close(x, lora.plain_weights(policy.lm, weights)[name], atol=1e-3)
