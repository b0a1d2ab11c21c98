"""demonstrations.py and warmstart.py: real programs in many styles, a cache that is never half-made."""

import ast
import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import warmstart
from demonstrations import render_program, render_response, sample_demonstration
from instrument import instrument, new_token
from model import frozen_copy
from prompts import build_prompt, extract_program
from recipes import MISTAKES, sample_recipe
from reward import compute_reward, trains_model
from sandbox import Sandbox
from tasks import find_task, load_task, task_names
from warmstart import (
    WarmStart,
    build_warm_start_optimizers,
    encode_example,
    fine_tune,
    load_warm_policy,
    supervised_loss,
    train_tokenizer,
)

TINY_SETTINGS = WarmStart(demonstrations=8, vocabulary=400)


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


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("random-pizza", "0c911886d5972f19e2d3b93bf320b15b334fdab38d0ded5d3129b314649a984f"),
        ("hello-world", "a5f5c72a87a364004cc033d01b3247bffb38505900b3737d554cae98f90a621c"),
    ],
)
def test_the_demonstrations_that_results_were_measured_with_stay_the_same(name, digest):
    schema, shares = find_task(name).SCHEMA, {"improve_share": 0.25, "mistake_share": 0.9}
    written = [repr(sample_demonstration(schema, random.Random(f"{name}/{i}"), **shares)) for i in range(200)]
    assert hashlib.sha256("\0".join(written).encode()).hexdigest() == digest


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", task_names())
def test_programs_without_mistake_are_valid_in_the_sandbox_and_reach_every_milestone(name, sandbox, tmp_path):
    task = load_task(name, tmp_path, "reward", salt=b"test")
    for i, (_, response) in enumerate(demonstrations(task.schema, 3, seed=name)):
        program, token = extract_program(response), new_token(str(i))
        execution = sandbox.run(instrument(program, token)[0], task.public_dir, time_limit_s=60)
        reward = compute_reward(task, program, execution, token)
        assert reward.score is not None and not reward.penalties, (reward.reason, execution.stderr[-500:], program)
        assert len(reward.milestones) == 7


@pytest.mark.parametrize("name", [name for name in task_names() if find_task(name).ID])
def test_several_families_of_models_and_most_mistakes_occur_in_programs_of_any_task(name):
    schema = find_task(name).SCHEMA
    recipes = [sample_recipe(schema, random.Random(i), 0.85) for i in range(400)]
    assert len({model.split("(")[0] for recipe in recipes for model in recipe.models}) >= 5
    assert len({recipe.mistake for recipe in recipes}) >= 9
    for i, recipe in enumerate(recipes):
        if recipe.mistake != "syntax":
            ast.parse(render_program(recipe, schema, random.Random(i)))


def test_awkward_column_names_are_quoted(pizza):
    odd = ('say "hi"', "back\\slash", "two\nlines", "{i}1", "{i}2", "{i}3", "{i}4", "naïve")
    schema = replace(pizza.schema, numeric=odd, id_column="it's", target_columns=('"',))
    for i in range(30):
        recipe = sample_recipe(schema, random.Random(i), 0.0)
        program = extract_program(render_response(recipe, schema, random.Random(i)))
        constants = {node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)}
        assert {*recipe.features.numeric, "it's", '"'} <= constants


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m != "label"])
def test_every_mistake_changes_the_program(mistake):
    rng = random.Random(mistake)
    name = {"labels": "plant-pathology", "path": "plant-pathology", "round": "essay-scoring"}.get(mistake, "random-pizza")
    schema = find_task(name).SCHEMA
    recipes = (sample_recipe(schema, rng, 1.0) for _ in range(1000))
    recipe = next(recipe for recipe in recipes if recipe.mistake == mistake)
    good = render_program(replace(recipe, mistake=""), schema, random.Random(0))
    bad = render_program(recipe, schema, random.Random(0))
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
    assert fine_tune(policy, examples, build_warm_start_optimizers(policy.lm, 5e-3), batch_size=2, label="test") < before / 2
    text = "naïve\tcafé 漢字 \U0001f355\r\n\x00 1e-05 __init__"
    tokenizer = train_tokenizer(["import pandas as pd\n"] * 3, 300)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "change",
    [
        {"problem": "span"},
        {"numeric": (), "text": ()},
        {"problem": "multiclass", "prediction": "probabilities", "classes": (2, 1), "target_columns": ("two", "one")},
    ],
)
def test_a_schema_that_is_not_covered_is_refused(change, pizza):
    with pytest.raises(ValueError, match="the demonstrations"):
        sample_recipe(replace(pizza.schema, **change), random.Random(0), 0.0)


@pytest.mark.parametrize(
    "change",
    [
        {"numeric": (), "text": (), "categorical": ("colour", "shape")},
        {"text": (), "problem": "ordinal", "prediction": "label", "classes": ("bad", "good", "best")},
        {"problem": "multiclass", "prediction": "probabilities", "classes": (1, 2), "target_columns": ("a", "b")},
        {"problem": "regression", "prediction": "value", "target_columns": ("a", "b", "c"), "codes": ("k", "l")},
    ],
)
def test_other_schemas_give_programs_that_parse_and_train(change, pizza):
    for _, response in demonstrations(replace(pizza.schema, **change), 40):
        assert trains_model(extract_program(response)), response


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
    keys = {warmstart._cache_key([t], s) for t in (pizza, replace(pizza, name="x")) for s in (TINY_SETTINGS, WarmStart())}
    assert len(keys) == 4
    assert "random-pizza" in build_prompt(pizza, brief=True)


def test_one_policy_learns_several_tasks_evenly(pizza, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOMLE_CACHE", str(tmp_path))
    spooky = load_task("spooky-author", tmp_path / "spooky", "reward")
    seen = []
    monkeypatch.setattr(warmstart, "_demonstration", lambda task, _, i: (seen.append(task.name) or f"{task.name} {i}", "x"))
    policy = load_warm_policy([pizza, spooky], TINY_SETTINGS)
    assert seen.count("random-pizza") == seen.count("spooky-author") == 4
    assert load_warm_policy((pizza, spooky), TINY_SETTINGS).lm.config.vocab_size == len(policy.tokenizer)
    assert [path.name.rsplit("-", 1)[0] for path in Path(tmp_path).glob("tiny-*")] == ["tiny-2-tasks"]


def test_micro_batches_change_nothing_of_the_fine_tuning(policy):
    examples = [([5, 6, 7, 8, 9, 10, 11][: 3 + i % 4], 1 + i % 2) for i in range(8)]
    tuned = []
    for budget in (1000, 7):
        other = frozen_copy(policy).requires_grad_(True)
        loss = fine_tune(other, examples, build_warm_start_optimizers(other.lm, 5e-3), batch_size=4, micro_batch_tok=budget)
        tuned.append((loss, other.lm.state_dict()))
    assert tuned[0][0] == pytest.approx(tuned[1][0], rel=1e-4)
    for name, weight in tuned[0][1].items():
        assert torch.allclose(weight, tuned[1][1][name], atol=1e-4), name


def test_plain_demonstrations_are_all_written_in_one_way(pizza):
    for index in range(30):
        options = {"improve_share": 0.5, "mistake_share": 0.0, "plain": True}
        _, response = sample_demonstration(pizza.schema, random.Random(index), **options)
        code = extract_program(response)
        lines = code.splitlines()
        first = next(i for i, line in enumerate(lines) if not line.startswith(("import ", "from ")))
        assert lines[first].startswith("train") and "= pd.read_json" in lines[first]
        assert not any(line.startswith(("import ", "from ", "#", "def ")) for line in lines[first:])
        ast.parse(code)
