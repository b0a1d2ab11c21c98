"""Drafts: they make samples faster and never others; and their arithmetic by hand."""

import pytest
import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, Phi3Config, Phi3ForCausalLM

from decoder import Decoder, ModelDecoder
from drafts import LONGEST, MOST_TOK, Drafts, K
from model import Policy
from sampler import check_sampler
from tests.test_sampler import KINDS, PROMPTS, build, make_stops_likely, sample

CPU, LARGE = torch.device("cpu"), 10**12  # parameters: calling the layers costs nothing beside reading them


def context(*ids: int) -> torch.Tensor:
    return torch.tensor([([-1] * K + list(ids))[-K:]])


@pytest.fixture
def steps(monkeypatch) -> list[tuple[int, int]]:
    """The shapes (n, N) that go through the model."""
    shapes = []
    for kind in (Decoder, ModelDecoder):
        plain = kind.step
        monkeypatch.setattr(kind, "step", lambda self, tokens, slots, plain=plain: (
            shapes.append(tuple(tokens.shape)), plain(self, tokens, slots))[1])  # fmt: skip
    return shapes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_p": 0.8}, {"slots": 2}, {"look_every": 5}])
def test_right_and_wrong_drafts_change_no_sample(kind, options, tokenizer, steps):
    policy = build(kind, tokenizer)
    rows, seeds, options = [0, 1, 2, 0], [3, 4, 5, 6], {"max_new_tok": 40, **options}
    made = sample(policy, rows, seeds, **options)
    undrafted = len(steps)
    texts = [PROMPTS[row] + g.ids for row, g in zip(rows, made, strict=True)]
    half_wrong = [[(t + (i % 7 == 6)) % len(tokenizer) for i, t in enumerate(ids)] for ids in texts]
    for similar, fewer in ((texts, 1.5), (half_wrong, 1)):
        steps.clear()
        again = sample(policy, rows, seeds, similar=similar, **options)
        assert [(g.ids, g.finish_reason) for g in again] == [(g.ids, g.finish_reason) for g in made]
        for g, h in zip(again, made, strict=True):
            assert torch.allclose(torch.tensor(g.logprobs), torch.tensor(h.logprobs), atol=1e-5)
        assert len(steps) * fewer <= undrafted


def test_a_known_text_takes_a_step_for_several_tokens(policy, steps):
    made = sample(policy, [0], [3], max_new_tok=64)[0].ids
    steps.clear()
    sample(policy, [0], [3], max_new_tok=64, similar=[PROMPTS[0] + made])
    assert 3 * len(steps) < len(made)
    assert max(new for _, new in steps) == 8


def test_a_stop_within_a_draft_ends_the_sample(policy):
    make_stops_likely(policy)
    made = sample(policy, [0, 1] * 8, list(range(16)), max_new_tok=40)
    assert {g.finish_reason for g in made} == {"stop", "length"}
    beyond = [PROMPTS[i % 2] + g.ids + [7, 8, 9] * 4 for i, g in enumerate(made)]
    again = sample(policy, [0, 1] * 8, list(range(16)), max_new_tok=40, similar=beyond)
    assert [(g.ids, g.finish_reason) for g in again] == [(g.ids, g.finish_reason) for g in made]


def test_the_longest_known_context_decides():
    drafts = Drafts([[1, 2, 3, 4, 5, 6, 7, 8, 9], [20, 4, 5, 6, 7, 8, 30]], CPU, LARGE)
    assert drafts.propose(context(1, 2, 3, 4, 5, 6, 7, 8), 1).tolist() == [[9]]
    assert drafts.propose(context(4, 5, 6, 7, 8), 1).tolist() == [[30]]  # the newer of the two
    assert drafts.propose(context(77, 20), 3).tolist() == [[4, 5, 6]]
    assert drafts.propose(context(77), 1).tolist() == [[-1]]


def test_a_draft_is_kept_up_to_the_first_token_that_differs():
    drafts = Drafts([], CPU, LARGE)
    contexts = torch.cat([context(1, 2), context(3), context(4)])
    draft, token = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 7]]), torch.tensor([[5, 6, 7], [5, 9, 7], [8, 6, 7]])
    kept, after = drafts.accept(contexts, draft, token, torch.tensor([True, True, True]))
    assert kept.tolist() == [3, 2, 1]  # never more than were run; the token in place of the wrong one is right
    assert torch.equal(after, torch.cat([context(1, 2, 5, 6, 7), context(3, 5, 9), context(4, 8)]))
    assert (drafts.right.item(), drafts.tried.item()) == (4, 6)
    assert drafts.propose(context(3, 5), 1).tolist() == [[9]] and drafts.propose(context(4), 1).tolist() == [[8]]
    assert drafts.propose(context(4, 8), 1).tolist() == [[-1]]  # what followed the wrong token was never written


def test_the_length_follows_what_was_right():
    """By the formula: with share a, N = 1 keeps 1 a step in 1 + n / 12; N keeps (1 - a^N) / (1 - a) in 1 + n N / 12."""
    drafts = Drafts([], CPU, LARGE)
    for _ in range(40):
        drafts.tried = torch.tensor(10)
        rarely = drafts.best_length(1)
    assert rarely == 1
    for _ in range(40):
        drafts.right, drafts.tried = torch.tensor(79), torch.tensor(100)
        often = [drafts.best_length(n) for n in (1, 8, 32)]
    a = drafts.share
    assert a == pytest.approx(0.79, abs=0.01)
    for n, new in zip((1, 8, 32), often, strict=True):
        kept = [sum(a**i for i in range(k)) / (1 + n * k / 12) for k in range(1, 9)]
        assert kept[new - 1] == max(kept)
    assert often[0] > often[2] and drafts.best_length(MOST_TOK) == 1
    tiny = Drafts([], CPU, 10**6)  # what a step costs beside its tokens is 12 + 50 of them
    tiny.right, tiny.tried = torch.tensor(790), torch.tensor(1000)
    kept = [sum(0.79**i for i in range(k)) / (1 + 32 * k / 62) for k in range(1, LONGEST + 1)]
    assert tiny.best_length(32) == kept.index(max(kept)) + 1 > often[2]


@pytest.mark.parametrize("look_every", [1, 7])
def test_a_model_is_not_run_beyond_the_positions_that_it_knows(look_every, tokenizer):
    """GPT-Neo's mask is a table of as many places as its positions."""
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global"], 2]], "initializer_range": 0.2}
    torch.manual_seed(0)
    policy = Policy(GPTNeoForCausalLM(GPTNeoConfig(
        vocab_size=len(tokenizer), max_position_embeddings=len(PROMPTS[0]) + 40, **shape)), tokenizer)  # fmt: skip
    made = []
    for _ in range(2):  # without and with drafts
        similar, before = [PROMPTS[0] + g.ids for g in made], made
        made = sample(policy, [0] * 6, list(range(6)), max_new_tok=40, slots=3, look_every=look_every, similar=similar)
    assert [g.ids for g in made] == [g.ids for g in before]
    assert [len(g.ids) for g in made].count(40) > 3


def test_an_ended_sample_waits_for_the_next_look(policy):
    """Behind its last token one more draft is run, and no more: its places are not many."""
    make_stops_likely(policy)
    rows, seeds = [0, 1] * 4, list(range(8))
    made = sample(policy, rows, seeds, max_new_tok=20)
    similar = [PROMPTS[row] + g.ids for row, g in zip(rows, made, strict=True)]
    again = sample(policy, rows, seeds, max_new_tok=20, look_every=100, similar=similar)
    assert [g.ids for g in again] == [g.ids for g in made]


def test_texts_to_draft_from_may_be_empty(policy):
    made = sample(policy, [0], [3])
    assert sample(policy, [0], [3], similar=[[], [5]])[0].ids == made[0].ids


def test_positions_that_no_sample_has_are_not_run(tokenizer):
    """With longrope one position beyond `original` makes every row of the batch rotate by other angles."""
    original, size = len(PROMPTS[0]) + 30, 8  # C
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * (size // 2),
            "long_factor": [8.0] * (size // 2), "original_max_position_embeddings": original}  # fmt: skip
    torch.manual_seed(0)
    policy = Policy(Phi3ForCausalLM(Phi3Config(
        vocab_size=len(tokenizer), hidden_size=4 * size, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=10 * original, original_max_position_embeddings=original,
        rope_parameters=rope, initializer_range=0.4, pad_token_id=0, bos_token_id=1, eos_token_id=2)), tokenizer)  # fmt: skip
    check_sampler(policy, original)
    with pytest.raises(ValueError, match=f"change beyond {original} tokens"):
        check_sampler(policy, original + 1)
    made = sample(policy, [0] * 4, list(range(4)), max_new_tok=30)
    similar = [PROMPTS[0] + g.ids for g in made]
    for look_every in (1, 16):
        again = sample(policy, [0] * 4, list(range(4)), max_new_tok=30, similar=similar, look_every=look_every)
        assert [g.ids for g in again] == [g.ids for g in made]
        for g in again:
            tokens = torch.tensor([PROMPTS[0] + g.ids])
            with torch.no_grad():
                log_p = policy(tokens)[0][0, len(PROMPTS[0]) - 1 : -1].div(0.7).log_softmax(-1)  # (N, V)
            exact = log_p.gather(-1, tokens[0, len(PROMPTS[0]) :, None]).squeeze(-1)
            torch.testing.assert_close(torch.tensor(g.logprobs), exact, atol=1e-3, rtol=0)


def test_texts_to_draft_from_may_have_tokens_that_the_model_has_not(policy):
    made = sample(policy, [0], [3])
    assert sample(policy, [0], [3], similar=[PROMPTS[0] + made[0].ids[:2] + [10**6] * 9])[0].ids == made[0].ids
