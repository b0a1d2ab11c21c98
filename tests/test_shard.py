"""shard.py: two sharded ranks, one of them without an episode, learn what one process learns."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from toy import SETTINGS, close, rows_of, sample_experience, spawn_two_ranks
from transformers import Qwen2Config, Qwen2ForCausalLM

import ppo
from model import Policy, frozen_copy
from ranks import finish_processes
from shard import clip_gradients, gathered, load_optimizer_state, shard, whole_optimizer_state, whole_weights

CHANGES = {"micro_batch_tok": 20, "epochs": 2, "minibatches": 2, "duration_weight": "mean", "detach_value": True}


def small_policy() -> Policy:
    """Eleven tokens, two layers, tied embeddings, a value head that is not zero."""
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
                         pad_token_id=None, initializer_range=0.2)  # fmt: skip
    policy = Policy(Qwen2ForCausalLM(config), None)
    torch.nn.init.normal_(policy.value_head.weight)
    return policy


def learn(policy: Policy, experience: ppo.Experience, **more) -> tuple[torch.optim.Optimizer, dict]:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    return optimizer, ppo.update(policy, optimizer, experience, **{**SETTINGS, **CHANGES, **more, "generator": generator})


def with_groups(experience: ppo.Experience) -> ppo.Experience:
    return replace(experience, group_index=torch.arange(len(experience.durations)) % 2)


def run_rank(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    whole = small_policy()
    policy, tokens = shard(frozen_copy(whole).requires_grad_(True)), torch.arange(4)[None]
    assert all(isinstance(p, DTensor) for p in policy.lm.parameters())  # what an optimizer would be built on
    with gathered(policy), torch.inference_mode():
        policy.lm.base_model(tokens)  # the sampler comes first, and leaves the policy's own forward out
        for _ in range(1 + rank):  # ranks sample differently long
            close(policy(tokens)[0], whole(tokens)[0])
    experience = rows_of(sample_experience(small_policy()), slice(0, 6) if rank == 0 else slice(0))
    optimizer, metrics = learn(policy, experience)
    result = {"metrics": metrics, "weights": whole_weights(policy), "optimizer": whole_optimizer_state(policy, optimizer),
              "head": policy.value_head.weight.detach()}  # fmt: skip
    grouped, experience = shard(frozen_copy(whole).requires_grad_(True)), with_groups(experience)
    result["group metrics"] = learn(grouped, experience, advantage="group")[1]
    result["group weights"] = whole_weights(grouped)
    torch.save(result, f"{directory}/rank{rank}.pt")
    dist.barrier()  # as on resume, every rank reads the file
    fresh, saved = torch.optim.AdamW(policy.parameters(), lr=1e-2), torch.load(f"{directory}/rank0.pt")["optimizer"]
    load_optimizer_state(policy, fresh, saved)
    for name, moments in whole_optimizer_state(policy, fresh).get("state", {}).items():
        close(moments["exp_avg"], saved["state"][name]["exp_avg"])
    finish_processes()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    return spawn_two_ranks(run_rank, directory)


def test_two_sharded_ranks_learn_what_one_process_learns(two_ranks):
    policy = small_policy()
    optimizer, metrics = learn(policy, sample_experience(small_policy()))
    weights = dict(policy.lm.named_parameters())
    assert two_ranks[0]["weights"].keys() == weights.keys() and two_ranks[1]["weights"] == {}
    for name, tensor in two_ranks[0]["weights"].items():
        close(tensor, weights[name].detach(), atol=1e-4)  # Adam divides by small gradients
    for rank in two_ranks:
        close(rank["head"], policy.value_head.weight.detach(), atol=1e-4)
        for name in metrics.keys() - {"policy/backbone_grad_norm", "value/grad_norm"}:
            assert rank["metrics"][name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5), name
    ours, theirs = whole_optimizer_state(policy, optimizer)["state"], two_ranks[0]["optimizer"]["state"]
    assert ours.keys() == theirs.keys() and two_ranks[1]["optimizer"].get("state", {}) == {}
    for name, moments in ours.items():
        close(theirs[name]["exp_avg"], moments["exp_avg"], atol=1e-4)


def test_two_sharded_ranks_learn_from_groups_what_one_process_does(two_ranks):
    policy = small_policy()
    _, metrics = learn(policy, with_groups(sample_experience(small_policy())), advantage="group")
    for name, tensor in two_ranks[0]["group weights"].items():
        close(tensor, dict(policy.lm.named_parameters())[name].detach(), atol=1e-4)
    for rank in two_ranks:
        for name in metrics.keys() - {"policy/backbone_grad_norm", "value/grad_norm"}:
            assert rank["group metrics"][name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5), name


def test_gradients_are_clipped_together():
    policy = small_policy()
    policy(torch.arange(4)[None])[0].square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.lm.parameters()]).norm()
    assert clip_gradients(policy, 0.5) == pytest.approx(float(expected), rel=1e-5)
    close(torch.cat([p.grad.flatten() for p in policy.lm.parameters()]).norm(), 0.5, atol=1e-4)
