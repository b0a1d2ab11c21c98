"""lm_instrument.py: a frozen model proposes, many programs at once, each text once, and never reads a token."""

import json
import re

import pytest
import torch
from test_rollout import FakeSandbox, collector, episode
from toy import SETTINGS

import ppo
from instrument import MILESTONES, PLACEHOLDER, instrument, instrument_ast, marker
from lm_instrument import EXAMPLE, LMInstrumenter, build_instrumenter_prompt
from model import frozen_copy
from prompts import extract_program
from rollout import Run, to_experience
from runlog import episode_metrics
from sampler import Generation

TOKEN = "0123456789abcdef"
PROGRAMS = [f"import pandas as pd\ndf = pd.read_csv('{name}')\nprint({i})\n" for i, name in enumerate(["a", "b", "a" * 30])]


@pytest.fixture
def model(policy):
    return LMInstrumenter(frozen_copy(policy))


@pytest.fixture
def asked(monkeypatch):
    """A model that does what it is asked for; the calls of the sampler, each a list of prompts as text."""
    calls = []

    def generate(policy, prompts, prompt_of, seeds, *, max_new_tok, temperature, slots):
        calls.append([policy.tokenizer.decode(ids) for ids in prompts])
        assert temperature == 0 and prompt_of == list(range(len(prompts)))
        programs = [re.findall(r"Program:\n```python\n(.*?)\n```", text, re.DOTALL)[-1] + "\n" for text in calls[-1]]
        ids = [policy.tokenizer(instrument_ast(p, PLACEHOLDER) + "```\n").input_ids for p in programs]
        assert max(map(len, ids)) <= max_new_tok
        return [Generation(i, [0.0] * len(i), "stop") for i in ids]

    monkeypatch.setattr("lm_instrument.generate", generate)
    return calls


def test_the_prompt_holds_the_seven_statements_and_an_example_that_would_be_accepted():
    prompt = build_instrumenter_prompt("import os\nx = 1\n")
    assert all(marker(milestone, PLACEHOLDER) in prompt for milestone in MILESTONES)
    example, answer = re.findall(r"```python\n(.*?)```", prompt, re.DOTALL)[:2]
    assert example == EXAMPLE and instrument(example, TOKEN, answer)[1]
    assert len(re.findall(PLACEHOLDER, answer)) == 7 and "import os\nx = 1\n```" in prompt


def test_programs_are_asked_about_together_each_text_once(model, asked):
    first = model.propose([PROGRAMS[0], PROGRAMS[1], PROGRAMS[0]])
    assert len(asked) == 1 and len(asked[0]) == 2
    assert first[0] == first[2] and all(instrument(PROGRAMS[i], TOKEN, first[i])[1] for i in (0, 1))
    assert model.propose(PROGRAMS)[:2] == first[:2] and len(asked[1]) == 1
    assert model.propose(PROGRAMS)[:2] == first[:2] and model.propose([]) == [] and len(asked) == 2


def test_old_answers_are_forgotten(model, asked, monkeypatch):
    monkeypatch.setattr("lm_instrument.REMEMBERED", 2)
    assert None not in model.propose(PROGRAMS) and len(model.answers) == 2
    model.propose(PROGRAMS[1:])
    assert len(asked) == 1
    model.propose(PROGRAMS[:1])
    assert len(asked) == 2


def test_what_is_too_long_or_does_not_compile_is_left_to_the_syntax_tree(policy, asked):
    length = len(LMInstrumenter(frozen_copy(policy))._prompt(PROGRAMS[0]))
    model = LMInstrumenter(frozen_copy(policy), context_tok=length + 700)
    texts = [PROGRAMS[0], "x = 1\n" * 1000, "x = (", "x = '\ud800'\n"]
    assert [answer is None for answer in model.propose(texts)] == [False, True, True, True]
    assert len(asked[0]) == 1


def test_a_proposal_depends_on_its_program_alone(model):
    """The real sampler, random weights: neither other programs nor their number or length matter."""
    together = model.propose(PROGRAMS)
    model.answers.clear()
    assert [model.propose([program])[0] for program in PROGRAMS] == together
    assert all(isinstance(answer, str) for answer in together)
    assert [instrument(p, TOKEN, a) for p, a in zip(PROGRAMS, together, strict=True)] == [
        (instrument_ast(p, TOKEN), False) for p in PROGRAMS]  # fmt: skip


def test_no_token_of_a_run_is_in_a_prompt_or_in_what_a_checkpoint_keeps(model, asked, policy, pizza, monkeypatch):
    monkeypatch.setattr("rollout.extract_program", lambda text: PROGRAMS[0])
    sandbox = FakeSandbox()
    made = collector(pizza, sandbox, instrumenter=model)
    runs = made.sample(policy, range(3), 0)
    states = json.loads(json.dumps([run.state() for run in runs]))
    for run in runs:
        made.start(run)
    for index, (program, _) in enumerate(sandbox.programs):
        token = made._token(index)
        assert program == instrument(PROGRAMS[0], token, instrument_ast(PROGRAMS[0], PLACEHOLDER))[0] and token in program
        assert token not in str(asked) + str(states)
    # a resumed run goes on from the proposals that were stored
    again = collector(pizza, FakeSandbox())
    for state in states:
        again.start(restored := Run.from_state(state))
        assert restored.instrumented_by == "lm"
    assert again.sandbox.programs == sandbox.programs and len(asked) == 1


def test_episodes_tell_whose_prints_ran_and_the_log_counts_them(model, asked, policy, pizza, monkeypatch):
    texts = iter([PROGRAMS[0], None, "x = (", PROGRAMS[1]])
    monkeypatch.setattr("rollout.extract_program", lambda text: next(texts))
    episodes = collector(pizza, FakeSandbox(), instrumenter=model).collect(policy, range(4))
    assert [e.instrumented_by for e in episodes] == ["lm", "ast", "ast", "lm"]
    assert episodes[0].record()["instrumented_by"] == "lm"
    assert episode_metrics(episodes, [pizza], 4, 0)["instrument/lm_accepted_frac"] == 0.5


def test_the_instrumenter_is_never_trained(policy):
    with pytest.raises(ValueError, match="frozen"):
        LMInstrumenter(policy)
    with pytest.raises(ValueError, match="frozen"):
        LMInstrumenter(frozen_copy(policy).train())
    reference = frozen_copy(policy)
    model = LMInstrumenter(reference)
    before, answers = {name: x.clone() for name, x in reference.state_dict().items()}, model.propose(PROGRAMS)
    episodes = [episode([5, 6], [7, 8, 9], total=float(-i)) for i in range(4)]
    experience = to_experience(episodes, policy, reference, temperature=0.7, micro_batch_tok=100)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1)
    weights = policy.lm.get_input_embeddings().weight.clone()
    ppo.update(policy, optimizer, experience, **SETTINGS)
    assert not torch.equal(weights, policy.lm.get_input_embeddings().weight)
    assert all(torch.equal(x, before[name]) for name, x in reference.state_dict().items())
    assert not reference.training and not any(p.requires_grad or p.grad is not None for p in reference.parameters())
    model.answers.clear()
    assert model.propose(PROGRAMS) == answers


def test_the_answer_is_read_as_any_other(model, monkeypatch):
    ids = model._encode("x = 1\n```\nThat was all.\n```python\ny = 2\n```")
    monkeypatch.setattr("lm_instrument.generate", lambda *a, **k: [Generation(ids, [0.0] * len(ids), "length")])
    assert model.propose(["x = 1\n"]) == ["x = 1\n"] == [extract_program("```python\nx = 1\n```")]
