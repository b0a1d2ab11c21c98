"""The sampler: exact log-probabilities, the right distribution, and nothing but prompt and seed decides a sample."""

import math

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import decoder
import ppo
import sampler
from decoder import Decoder, ModelDecoder, Slots
from model import Policy
from sampler import check_sampler, generate

PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [40, 41, 42]]
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # fmt: skip
KINDS = {
    "qwen2": lambda v: Qwen2ForCausalLM(Qwen2Config(vocab_size=v, tie_word_embeddings=True, **SHAPE)),
    "llama": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, **SHAPE)),
    "llama with biases": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, attention_bias=True, mlp_bias=True, **SHAPE)),
    "llama 3.1": lambda v: LlamaForCausalLM(LlamaConfig(vocab_size=v, rope_parameters={
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8}, **SHAPE)),
    "qwen3": lambda v: Qwen3ForCausalLM(Qwen3Config(vocab_size=v, head_dim=16, **SHAPE)),
    "gpt2": lambda v: GPT2LMHeadModel(GPT2Config(vocab_size=v, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2,
                                                 bos_token_id=None, eos_token_id=None)),
    "gpt2, eager attention": lambda v: GPT2LMHeadModel(GPT2Config(
        vocab_size=v, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
        attn_implementation="eager")),
}  # fmt: skip


def build(kind, tokenizer) -> Policy:
    """A random model none of whose weights is 0 or 1, so that a forgotten one shows."""
    torch.manual_seed(0)
    policy = Policy(KINDS[kind](len(tokenizer)), tokenizer)
    with torch.no_grad():
        for p in policy.lm.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p), alpha=0.3)
    return policy


def sample(policy, prompt_of, seeds, prompts=PROMPTS, **options):
    return generate(policy, prompts, prompt_of, seeds, **{"max_new_tok": 12, "temperature": 0.7, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_equal_those_of_a_plain_forward(kind, tokenizer):
    """Ragged prompts, more samples than slots: rows start and end at different times, at different places of the cache."""
    policy = build(kind, tokenizer)
    assert Decoder.understands(policy) == ("gpt2" not in kind)
    check_sampler(policy, 50)
    rows = [0, 1, 2, 0, 1, 2, 1]
    for prompt, made in zip(rows, sample(policy, rows, list(range(7)), slots=3), strict=True):
        tokens = torch.tensor([PROMPTS[prompt] + made.ids])
        mask = torch.arange(tokens.shape[1])[None] >= len(PROMPTS[prompt])
        logprobs = ppo.evaluate(policy, tokens, mask, 0.7)[0][mask]
        assert (logprobs - torch.tensor(made.logprobs)).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_our_forward_samples_what_the_models_own_does(kind, tokenizer, monkeypatch):
    policy = build(kind, tokenizer)
    samples = [sample(policy, [0, 1, 2, 0], [3, 4, 5, 6])]
    monkeypatch.setattr(decoder.Decoder, "understands", staticmethod(lambda policy: False))
    samples.append(sample(policy, [0, 1, 2, 0], [3, 4, 5, 6]))
    assert [g.ids for g in samples[0]] == [g.ids for g in samples[1]]


def test_what_our_forward_does_not_do_is_left_to_the_model(tokenizer):
    for change in ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, {"hidden_act": "gelu"}):
        policy = Policy(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **{**SHAPE, **change})), tokenizer)
        assert isinstance(decoder.build_decoder(policy), ModelDecoder)
    config = Qwen2Config(vocab_size=len(tokenizer), use_sliding_window=True, sliding_window=4, max_window_layers=0, **SHAPE)
    assert isinstance(decoder.build_decoder(Policy(Qwen2ForCausalLM(config), tokenizer)), ModelDecoder)


def test_a_sample_depends_on_its_prompt_and_seed_alone(policy):
    """Case 20: neither the other rows, nor their number, nor padding change a program."""
    together = sample(policy, [0, 1, 2, 0], [3, 4, 5, 6])
    alone = [sample(policy, [0], [s], [PROMPTS[p]])[0] for p, s in zip([0, 1, 2, 0], [3, 4, 5, 6], strict=True)]
    assert [g.ids for g in together] == [g.ids for g in alone]
    assert [g.ids for g in together] == [g.ids for g in sample(policy, [0, 1, 2, 0], [3, 4, 5, 6], slots=1)]
    assert sample(policy, [0], [3], [PROMPTS[0]])[0].ids != sample(policy, [0], [6], [PROMPTS[0]])[0].ids


def test_rows_that_go_on_until_the_next_look_change_nothing(policy):
    """On a GPU the sampler looks only now and then at which samples have ended."""
    make_stops_likely(policy)
    often = sample(policy, [0, 1, 2] * 8, list(range(24)), slots=5, max_new_tok=40)
    assert {g.finish_reason for g in often} == {"stop", "length"}
    seldom = sample(policy, [0, 1, 2] * 8, list(range(24)), slots=5, max_new_tok=40, look_every=7)
    assert [(g.ids, g.finish_reason) for g in often] == [(g.ids, g.finish_reason) for g in seldom]


def test_samples_follow_the_distribution_at_the_temperature(policy):
    n, temperature = 4000, 0.7
    first = [g.ids[0] for g in sample(policy, [1] * n, list(range(n)), max_new_tok=1, temperature=temperature)]
    with torch.no_grad():
        logits, _ = policy(torch.tensor([PROMPTS[1]]))
    p = (logits[0, -1] / temperature).softmax(-1)
    frequency = torch.bincount(torch.tensor(first), minlength=len(p)) / n
    assert (frequency - p).abs().max() < 4 * math.sqrt(0.25 / n)


def test_sequences_follow_the_distribution_of_transformers_generate(policy):
    """The pair of the first two tokens, sampled 4000 times by each: total variation as for two samples of one distribution."""
    n, temperature = 4000, 0.3
    ours = [tuple(g.ids) for g in sample(policy, [1] * n, list(range(n)), max_new_tok=2, temperature=temperature, slots=n)]
    torch.manual_seed(1)
    settings = {"do_sample": True, "temperature": temperature, "top_k": 0, "eos_token_id": None, "pad_token_id": 0}
    out = policy.lm.generate(torch.tensor([PROMPTS[1]] * 2 * n), max_new_tokens=2, **settings)
    theirs = [tuple(ids) for ids in out[:, len(PROMPTS[1]) :].tolist()]  # a stop token does not stop it
    ours = [pair if len(pair) == 2 else (pair[0], -1) for pair in ours]
    theirs = [pair if pair[0] != policy.tokenizer.eos_token_id else (pair[0], -1) for pair in theirs]

    def distance(a, b):
        return sum(abs(a.count(pair) / len(a) - b.count(pair) / len(b)) for pair in {*a, *b}) / 2

    assert distance(ours, theirs[:n]) < 1.15 * distance(theirs[n:], theirs[:n])


def test_top_p_keeps_the_likeliest_tokens(policy):
    n = 500
    with torch.no_grad():
        logits, _ = policy(torch.tensor([PROMPTS[1]]))
    p, token = (logits[0, -1] / 0.7).softmax(-1).sort(descending=True)
    nucleus = token[: int((p.cumsum(-1) < 0.5).sum()) + 1].tolist()  # the smallest set that has half of the probability
    made = sample(policy, [1] * n, list(range(n)), max_new_tok=1, top_p=0.5)
    assert {g.ids[0] for g in made} == set(nucleus)
    first = {g.ids[0]: g.logprobs[0] for g in made}
    assert first[nucleus[0]] == pytest.approx(math.log(p[0]), abs=1e-5)  # of the whole distribution


def test_greedy_takes_the_likeliest_token_whatever_the_seed(policy):
    made = sample(policy, [0, 1, 2], [3, 4, 5], temperature=0)
    for prompt, g in zip(PROMPTS, made, strict=True):
        with torch.no_grad():
            logits, _ = policy(torch.tensor([prompt + g.ids]))
        assert logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == g.ids
    assert [g.ids for g in made] == [g.ids for g in sample(policy, [0, 1, 2], [0, 0, 0], temperature=0, slots=1)]


def make_stops_likely(policy):
    with torch.no_grad():
        policy.lm.get_input_embeddings().weight[policy.tokenizer.eos_token_id] *= 3  # tied


def test_rows_that_finish_early_do_not_change_the_others(policy):
    make_stops_likely(policy)
    together = sample(policy, [0, 1] * 16, list(range(32)), max_new_tok=40)
    assert 2 * sum(g.finish_reason == "stop" for g in together) > len(together)
    for i in (0, 7, 31):
        assert together[i].ids == sample(policy, [0], [i], [PROMPTS[i % 2]], max_new_tok=40)[0].ids


def test_prompts_are_read_some_at_a_time(policy, monkeypatch):
    monkeypatch.setitem(sampler.PREFILL_TOK, "cpu", 7)
    apart = sample(policy, [0, 1, 2, 0], [3, 4, 5, 6], slots=2)
    monkeypatch.undo()
    assert [g.ids for g in apart] == [g.ids for g in sample(policy, [0, 1, 2, 0], [3, 4, 5, 6])]


@pytest.mark.parametrize("rows", [1, 8, 15, 16, 33, 64, 65])
@pytest.mark.parametrize("shape", [(2048, 129), (2047, 129), (24, 8)])
def test_products_in_blocks_are_those_of_linear(rows, shape):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, shape[1]), torch.randn(shape), torch.randn(shape[0])
    for b in (None, bias):
        ours, theirs = decoder._linear(x, weight, b), torch.nn.functional.linear(x, weight, b)
        assert ours.is_contiguous() and torch.allclose(ours, theirs, rtol=1e-5, atol=1e-4)


def test_a_row_moves_with_all_that_it_holds():
    slots = Slots([torch.zeros(1, 2, 3)], [torch.zeros(1, 2, 3)], slots=2, places=4)
    slots.fill(1, [torch.ones(1, 2, 3)], [2 * torch.ones(1, 2, 3)])
    slots.move(1, 0)
    assert slots.lengths.tolist() == [2, 2]
    slots.trim(1)
    keys, values = slots.kv[0][:1, :, : slots.places_in_use].chunk(2, 1)
    assert keys.unique().tolist() == [1] and values.unique().tolist() == [2]


def test_models_that_would_be_sampled_wrongly_are_refused(tokenizer):
    shape = {"vocab_size": len(tokenizer), **SHAPE}
    sliding = Policy(MistralForCausalLM(MistralConfig(sliding_window=8, **shape)), tokenizer)
    with pytest.raises(ValueError, match="8 tokens at most"):
        check_sampler(sliding, 50)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="cannot be sampled from"):
        check_sampler(Policy(bloom, tokenizer), 50)


def test_a_sample_that_has_ended_may_pass_the_last_position(tokenizer):
    """Between two looks, where positions are learnt: their table ends there."""
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=16, bos_token_id=None)
    policy = Policy(GPT2LMHeadModel(config), tokenizer)
    assert len(sample(policy, [0], [1], [[5] * 8], max_new_tok=8, look_every=16)[0].ids) <= 8


def test_numbers_that_cannot_be_meant_are_refused(policy):
    for options in ({"temperature": -1}, {"temperature": math.nan}, {"top_p": 0}, {"slots": 0}, {"max_new_tok": 0}):
        with pytest.raises(ValueError, match="cannot sample with"):
            sample(policy, [0], [1], **options)


def test_nothing_to_sample_an_empty_prompt_and_logits_that_are_no_numbers(policy):
    assert sample(policy, [], []) == []
    with pytest.raises(ValueError, match="no token"):
        sample(policy, [0, 1], [0, 1], [[5], []])
    with torch.no_grad():
        policy.lm.get_input_embeddings().weight[7] = math.nan  # tied: its logit, and all after it
    with pytest.raises(FloatingPointError):
        sample(policy, [0], [1])
