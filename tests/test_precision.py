"""bf16, gradient checkpointing, and other layouts of a batch: what they may change, and what not."""

import pytest
import torch
from test_lora import adapted
from test_sampler import KINDS, PROMPTS, build, sample
from toy import SETTINGS

import lora
import ppo
from config import parse_args
from model import checkpoint_gradients, frozen_copy, use_bf16
from rollout import Episode, to_experience
from train import prepare

ROWS = [0, 1, 2, 0, 1, 2, 1]


def plain_logprobs(policy, prompt: list[int], ids: list[int]) -> torch.Tensor:
    tokens = torch.tensor([prompt + ids])
    mask = torch.arange(tokens.shape[1])[None] >= len(prompt)
    with torch.no_grad():
        return ppo.evaluate(policy, tokens, mask, 0.7)[0][mask]


@pytest.mark.parametrize("kind", KINDS)
def test_the_sampler_in_bf16_is_as_near_to_the_plain_forward_as_that_is_to_fp32(kind, tokenizer):
    policy = build(kind, tokenizer)
    exact = frozen_copy(policy)
    use_bf16(policy)
    by_sampler, by_precision = [], []
    for row, made in zip(ROWS, sample(policy, ROWS, list(range(7)), slots=3), strict=True):
        plain = plain_logprobs(policy, PROMPTS[row], made.ids)
        by_sampler.append((plain - torch.tensor(made.logprobs)).square().mean())
        by_precision.append((plain - plain_logprobs(exact, PROMPTS[row], made.ids)).square().mean())
    assert sum(by_precision) > 0 and sum(by_sampler) < 4 * sum(by_precision)


def test_in_bf16_what_is_trained_stays_fp32_and_a_frozen_projection_is_halved(policy):
    before = {name: p.clone() for name, p in policy.lm.named_parameters()}
    reference = use_bf16(frozen_copy(policy))
    use_bf16(policy)
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    halved = {name for name, p in reference.lm.named_parameters() if p.dtype == torch.bfloat16}
    assert halved == {name for name in before if "_proj." in name}
    tokens = torch.tensor(PROMPTS[:1])
    assert policy(tokens)[0].dtype == torch.bfloat16 and torch.equal(policy(tokens)[0], reference(tokens)[0])  # KL 0 at step 0
    experience = ppo_batch(policy, reference)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)  # a step that would round to nothing in bf16
    ppo.update(policy, optimizer, experience, **SETTINGS)
    moved = [not torch.equal(p, before[name]) for name, p in policy.lm.named_parameters() if p.ndim == 2]
    assert all(moved)


def ppo_batch(policy, reference):
    """Experience of sampled responses as train.py has it, with made-up rewards."""
    made = sample(policy, ROWS, list(range(7)), slots=3)
    episodes = [fake_episode(i, PROMPTS[row], g) for i, (row, g) in enumerate(zip(ROWS, made, strict=True))]
    return to_experience(episodes, policy, reference, temperature=0.7, micro_batch_tok=64)


def fake_episode(index, prompt_ids, generation):
    class Part:
        total, score, duration_s = float(index % 3), 0.5, 1.0

    return Episode(
        index=index, task="toy", kind="scratch", prompt_ids=prompt_ids, response_ids=generation.ids,
        behaviour_logprobs=generation.logprobs, finish_reason=generation.finish_reason, policy_version=0, response="",
        program=None, execution=Part, reward=Part, instrumented_by=None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "gpt2" not in kind])
@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_first_step_has_ratio_one_and_no_kl(kind, rank, bf16, tokenizer):
    """From any start (here random weights; an SFT or LoRA checkpoint is no different to it), in micro-batches of any width."""
    policy = build(kind, tokenizer)
    reference = frozen_copy(policy)
    if rank:
        lora.add_adapter(policy.lm, rank, 0)
        reference = lora.AdapterOff(policy)
    if bf16:
        use_bf16(policy)
        reference = reference if rank else use_bf16(reference)
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.0)
    metrics = ppo.update(policy, optimizer, ppo_batch(policy, reference), **{**SETTINGS, "micro_batch_tok": 40})
    near = 0.1 if bf16 else 1e-5
    assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=near) and metrics["policy/ratio_max"] <= 1 + near
    assert metrics["policy/kl_k3"] < near**2 and metrics["policy/kl_ref"] < (1e-1 if bf16 else 1e-8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "gpt2" not in kind])
@pytest.mark.parametrize("rank", [0, 4])
def test_logprobs_are_those_of_left_padded_and_of_packed_forwards(kind, rank, tokenizer):
    """Our rows are padded on the right, which needs no mask; transformers' own layouts say the same of what we sampled."""
    policy = adapted(build(kind, tokenizer), rank) if rank else build(kind, tokenizer)
    made = sample(policy, [0, 1, 2], [3, 4, 5], slots=2)
    rows = [prompt + g.ids for prompt, g in zip(PROMPTS, made, strict=True)]
    width, total = max(map(len, rows)), sum(map(len, rows))
    padded = torch.tensor([[0] * (width - len(ids)) + ids for ids in rows])  # (B, T)
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in rows])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    owner = torch.tensor([i for i, ids in enumerate(rows) for _ in ids])  # (T,) which row a token of the packed one is of
    visible = (owner[:, None] == owner) & torch.ones(total, total, dtype=torch.bool).tril()
    place = torch.cat([torch.arange(len(ids)) for ids in rows])[None]
    with torch.no_grad():
        left, _ = policy(padded, attention_mask=mask, position_ids=positions)
        together = torch.tensor([[i for ids in rows for i in ids]])  # (1, T)
        packed, _ = policy(together, attention_mask=visible[None, None], position_ids=place)
    end = 0
    for row, g in enumerate(made):
        end += len(rows[row])
        for logits in (left[row, -len(g.ids) - 1 : -1], packed[0, end - len(g.ids) - 1 : end - 1]):
            logprobs = (logits / 0.7).log_softmax(-1).gather(-1, torch.tensor(g.ids)[:, None])[:, 0]
            assert (logprobs - torch.tensor(g.logprobs)).abs().max() < 3e-5  # logits up to 20, in fp32


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("rank", [0, 4])
def test_checkpointing_changes_no_gradient_and_computes_each_layer_twice(kind, rank, tokenizer):
    policy = build(kind, tokenizer)
    if rank and "gpt2" not in kind:
        adapted(policy, rank)
    tokens = torch.tensor([PROMPTS[0] * 2])
    mask = torch.arange(tokens.shape[1])[None] > 2
    calls, gradients = [], []
    inside = lora.decoder_layers(policy.lm)[0].get_submodule("mlp")
    inside.register_forward_pre_hook(lambda *_: calls.append(1))  # before: the second time stops when it has what it needs
    for turn in (lambda policy: policy, checkpoint_gradients):
        policy.zero_grad()
        turn(policy)
        calls.clear()
        ppo.evaluate(policy, tokens, mask, 0.7)[0].sum().backward()
        gradients.append([p.grad.clone() for p in policy.lm.parameters() if p.requires_grad])
        assert len(calls) == (2 if turn is checkpoint_gradients else 1)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert not any(module.training for module in policy.modules() if isinstance(module, torch.nn.Dropout))


def test_precision_and_checkpointing_are_what_the_flags_say(policy):
    config = parse_args(["--model", "tiny", "--precision", "bf16", "--gradient-checkpointing"])[0]
    prepared = prepare(config, policy)
    assert prepared.bf16 and lora.decoder_layers(prepared.lm)[0].training
    config = parse_args(["--model", "tiny"])[0]
    assert (config.precision, config.gradient_checkpointing) == ("bf16" if torch.cuda.is_available() else "fp32", False)
    assert parse_args(["--model", "some/model"])[0].gradient_checkpointing
