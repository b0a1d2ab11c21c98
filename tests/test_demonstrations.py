"""demonstrations.py and warmstart.py: real programs in many styles, a cache that is never half-made."""

import ast
import random
from dataclasses import replace

import pytest
import torch

import warmstart
from demonstrations import MISTAKES, render_program, sample_demonstration, sample_recipe
from instrument import instrument, new_token
from prompts import build_prompt, extract_program
from reward import compute_reward, trains_model
from sandbox import Sandbox
from tasks import load_task
from warmstart import WarmStart, encode_example, fine_tune, load_warm_policy, supervised_loss, train_tokenizer

TINY_SETTINGS = WarmStart(demonstrations=24, vocabulary=400)


def demonstrations(schema, n, seed=0, **shares):
    shares = {"improve_share": 0.0, "mistake_share": 0.0, **shares}
    return [sample_demonstration(schema, random.Random(f"{seed}/{i}"), **shares) for i in range(n)]


def test_one_seed_gives_the_same_text_another_gives_other_text(pizza):
    a, b = (demonstrations(pizza.schema, 20, improve_share=0.5, mistake_share=0.5) for _ in range(2))
    assert a == b and a != demonstrations(pizza.schema, 20, seed=1)
    assert len({response for _, response in a}) == 20


def test_programs_without_mistake_parse_train_a_model_and_come_back_from_the_response(pizza):
    for _, response in demonstrations(pizza.schema, 100):
        program = extract_program(response)
        ast.parse(program)
        assert trains_model(program) and f"```python\n{program}```" in response


@pytest.mark.parametrize("name", ["random-pizza", "hello-world"])
def test_programs_without_mistake_are_valid_in_the_sandbox_and_reach_every_milestone(name, tmp_path):
    task = load_task(name, tmp_path, "reward", salt=b"test")
    with Sandbox(2) as sandbox:
        for i, (_, response) in enumerate(demonstrations(task.schema, 12)):
            program, token = extract_program(response), new_token(str(i))
            execution = sandbox.run(instrument(program, token)[0], task.public_dir, time_limit_s=60)
            reward = compute_reward(task, program, execution, token)
            assert reward.score is not None and not reward.penalties, (reward.reason, execution.stderr[-500:], program)
            assert len(reward.milestones) == 7


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m != "label"])
def test_every_mistake_makes_the_program_fail(mistake, pizza):
    rng = random.Random(mistake)
    recipe = replace(sample_recipe(pizza.schema, rng, 0.0), mistake="", numeric=pizza.schema.numeric, text=pizza.schema.text)
    good = render_program(recipe, pizza.schema, random.Random(0))
    bad = render_program(replace(recipe, mistake=mistake), pizza.schema, random.Random(0))
    assert bad != good


def test_an_improvement_shows_another_program_and_made_up_output(pizza):
    for earlier, response in demonstrations(pizza.schema, 20, improve_share=1.0, mistake_share=0.5):
        assert earlier.program != extract_program(response)
        assert (earlier.score is None) == (earlier.output in MISTAKES.values() and earlier.output != "")


def test_only_the_response_is_trained_on(policy):
    ids, prompt_length = encode_example(policy.tokenizer, "import", "print(1)")
    assert ids[-1] == policy.tokenizer.eos_token_id and 0 < prompt_length < len(ids) - 1
    loss = supervised_loss(policy, [(ids, prompt_length), (ids[: prompt_length + 1], prompt_length)])
    logits, _ = policy(torch.tensor([ids]))
    logp = logits.log_softmax(-1)[0, prompt_length - 1 : -1].gather(-1, torch.tensor(ids[prompt_length:])[:, None])
    assert torch.allclose(loss, -(logp.sum() + logp[0, 0]) / (len(logp) + 1), atol=1e-5)


def test_fine_tuning_lowers_the_loss_and_any_text_survives_the_tokenizer(policy):
    examples = [encode_example(policy.tokenizer, "import", "print(1)") for _ in range(64)]
    before = supervised_loss(policy, examples[:1]).item()
    assert fine_tune(policy, examples, batch_size=2, learning_rate=5e-3, label="test") < before / 2
    text = "naïve\tcafé 漢字 \U0001f355\r\n\x00 1e-05 __init__"
    tokenizer = train_tokenizer(["import pandas as pd\n"] * 3, 300)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_schema_that_is_not_covered_is_refused(pizza):
    with pytest.raises(ValueError, match="binary"):
        sample_recipe(replace(pizza.schema, problem="regression"), random.Random(0), 0.0)


def test_the_cache_is_used_keyed_by_what_it_depends_on_and_never_half_made(pizza, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(warmstart, "save_policy", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_warm_policy(pizza, TINY_SETTINGS)
    assert not list(tmp_path.iterdir())
    first = load_warm_policy(pizza, TINY_SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(warmstart, "_build", lambda *_: pytest.fail("built again"))
        again = load_warm_policy(pizza, TINY_SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    keys = {warmstart._cache_key(t, s) for t in (pizza, replace(pizza, name="x")) for s in (TINY_SETTINGS, WarmStart())}
    assert len(keys) == 4
    assert "random-pizza" in build_prompt(pizza, brief=True)
