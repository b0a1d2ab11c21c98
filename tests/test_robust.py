"""robust.py: statistics against hand-computed values, pieces that are not made twice, what is refused."""

import contextlib
import dataclasses
import json
import math

import pytest
from test_rollout import FakeSandbox

import eval
import robust
from checkpoint import UsageError, load_secret, save_checkpoint
from config import Config, resolve
from perturbations import HINTS, NAMES
from prompts import build_prompt
from robust import choose_held_out, evaluate_robustness
from robust_table import as_markdown, attempts_per_success, compare, summarise
from warmstart import train_tokenizer


def episodes(*rows):
    """(repeat, index, reward, score) each."""
    return [dict(zip(("repeat", "index", "reward", "score"), row, strict=True)) for row in rows]


BASE = episodes((0, 0, 1.0, 0.9), (0, 1, 3.0, 0.8), (1, 0, 2.0, 0.7), (1, 1, -10.0, None))
OTHER = episodes((0, 0, 0.0, 0.5), (0, 1, -10.0, None), (1, 0, 0.0, 0.5), (1, 1, -10.0, None))


def test_statistics_by_hand():
    found = summarise(BASE)
    assert found["programs"] == 4 and found["valid_frac"] == 0.75 and found["attempts_per_success"] == pytest.approx(4 / 3)
    assert found["mean_reward"] == pytest.approx(-1.0) and found["mean_score"] == pytest.approx(0.8)
    assert found["variance_of_mean"] == pytest.approx(18.0)  # the means of the repeats are 2 and -4
    assert found["variance_in_prompt"] == pytest.approx((0.5 + 84.5) / 2)  # of (1, 2) and of (3, -10)


def test_drop_and_standard_error_by_hand():
    found = compare(BASE, OTHER)  # d = (1 + 2) / 2 and (13 + 0) / 2
    assert found["reward_drop"] == pytest.approx(4.0) and found["reward_drop_se"] == pytest.approx(2.5)
    assert found["valid_drop"] == pytest.approx(0.25) and found["valid_drop_se"] == pytest.approx(0.25)  # 0 and 1/2


def test_only_pairs_are_compared():
    found = compare(BASE, [e for e in OTHER if (e["repeat"], e["index"]) != (1, 1)])
    assert found["reward_drop"] == pytest.approx((1.5 + 13) / 2)
    assert compare(BASE, BASE) == {"reward_drop": 0, "reward_drop_se": 0, "valid_drop": 0, "valid_drop_se": 0}


def test_attempts_per_success():
    assert attempts_per_success(0.25) == 4 and attempts_per_success(0.0) == math.inf
    assert summarise(episodes((0, 0, -10.0, None)))["attempts_per_success"] is None


def test_one_repeat_of_one_prompt_has_no_variance_and_no_error():
    one = episodes((0, 0, 0.5, 0.7))
    found = summarise(one) | compare(one, one)
    assert [key for key, value in found.items() if value is None] == [
        "variance_of_mean", "variance_in_prompt", "reward_drop_se", "valid_drop_se",
    ]  # fmt: skip


def test_the_table_shows_infinity_dashes_and_notes():
    rows = [{"policy": "trained", "perturbation": "none", "left_out": None, **summarise(BASE)},
            {"policy": "trained", "perturbation": "held-out", "left_out": None, "task": "other", "metric": "auc",
             **summarise(episodes((0, 0, -10.0, None))), **compare(BASE, OTHER)}]  # fmt: skip
    task = {"task": "t", "data": "twin", "metric": "auc", "notes": ["it fails completely"], "rows": rows}
    report = {"samples": 2, "repeats": 2, "temperature": 0.7, "policies": {"trained": "step_3"}, "tasks": [task]}
    lines = as_markdown(report).splitlines()
    none, held_out = (next(line for line in lines if f"| {name}" in line) for name in ("none", "held-out"))
    assert [cell.strip() for cell in none.split("|")[3:6]] == ["75.0%", "1.33", "-1.000"] and none.count("–") == 2
    assert "∞" in held_out and "4.000 ± 2.500" in held_out and "held-out: other (auc)" in held_out
    assert "- it fails completely" in lines


# ------------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def tokenizer(pizza):
    """Knows the words of a prompt, which has some hundred tokens then, not thousands."""
    return train_tokenizer([build_prompt(pizza, brief=False)] * 3, 1500)


@pytest.fixture
def run(policy, tmp_path, monkeypatch):
    """A run of a random policy, whose programs a fake sandbox answers."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    load_secret(run_dir)
    write_config(run_dir)
    save_checkpoint(run_dir, 0, policy, {})
    with policy_moved(policy):
        save_checkpoint(run_dir, 2, policy, {})
    monkeypatch.setattr(robust, "set_threads", lambda config: None)
    monkeypatch.setattr(robust, "build_sandbox", lambda config: contextlib.nullcontext(FakeSandbox()))
    return run_dir


@contextlib.contextmanager
def policy_moved(policy):
    weight = policy.lm.get_input_embeddings().weight.data
    weight += 0.01
    yield
    weight -= 0.01


def write_config(run_dir, **changes):
    config = resolve(Config(task="random-pizza", model="tiny", run_dir=str(run_dir), max_new_tok=4, **changes))
    (run_dir / "config.json").write_text(json.dumps(dataclasses.asdict(config)))


def pieces(run_dir):
    return sorted(path.name for path in (run_dir / "robust").iterdir())


def test_every_perturbation_of_both_policies_is_measured_and_reported(run, capsys):
    evaluate_robustness(run, 2, 2)
    report = json.loads((run / "robust.json").read_text())
    (task,) = report["tasks"]
    assert [(row["policy"], row["perturbation"]) for row in task["rows"]] == [
        (policy, name) for policy in ("start", "trained") for name in (*NAMES, "held-out")
    ]
    assert all(row["programs"] == 4 and row["valid_frac"] == 0 and row["attempts_per_success"] is None for row in task["rows"])
    assert task["rows"][-1]["task"] == "chatbot-arena" and "it fails completely" in "".join(task["notes"])
    assert (run / "robust.md").read_text() in capsys.readouterr().out


def test_what_is_finished_is_not_made_again(run, monkeypatch, capsys):
    evaluate_robustness(run, 2, 1)
    first, made = (run / "robust.json").read_bytes(), pieces(run)
    assert len(made) == 2 * (len(NAMES) + 1)

    broken, lost = (next(run / "robust" / name for name in made if name.startswith(x)) for x in ("start", "trained"))
    broken.write_text(broken.read_text()[:20])
    lost.unlink()
    capsys.readouterr()
    evaluate_robustness(run, 2, 1)
    assert capsys.readouterr().out.count("programs ...") == 2  # and the same numbers
    assert pieces(run) == made and (run / "robust.json").read_bytes() == first

    monkeypatch.setattr(robust, "build_sandbox", lambda config: pytest.fail("a sandbox for nothing"))
    evaluate_robustness(run, 2, 1)
    assert (run / "robust.json").read_bytes() == first


def test_a_piece_is_of_its_settings(run):
    evaluate_robustness(run, 1, 1)
    config, first = json.loads((run / "config.json").read_text()), pieces(run)
    for change in ({"temperature": 0.9}, {"seed": 1}, {"failure_reward": -9.0}, {"max_new_tok": 5}):
        before = {*pieces(run)}
        (run / "config.json").write_text(json.dumps(config | change))
        evaluate_robustness(run, 1, 1)
        assert len({*pieces(run)} - before) == len(first), change


def test_a_piece_is_of_its_policy(run, policy):
    evaluate_robustness(run, 1, 1)
    before = {*pieces(run)}
    with policy_moved(policy), policy_moved(policy):
        save_checkpoint(run, 3, policy, {})
    evaluate_robustness(run, 1, 1)
    new = {*pieces(run)} - before
    assert len(new) == len(NAMES) + 1 and all(name.startswith("trained") for name in new)


def test_the_policy_reads_the_perturbed_prompts(run, monkeypatch):
    """Both policies, both repeats: the same prompts, of which those with hints show them and no others do."""
    texts, collect = [], robust.Collector.collect

    def spy(self, policy, indices):
        made = collect(self, policy, indices)
        texts.append(tuple(policy.tokenizer.decode(e.prompt_ids) for e in made))
        return made

    monkeypatch.setattr(robust.Collector, "collect", spy)
    evaluate_robustness(run, 2, 2)
    views = len(NAMES) + 1
    assert len(texts) == 2 * views * 2 and texts[: 2 * views] == texts[2 * views :] and texts[::2] == texts[1::2]
    assert sum(any(hint in text for hint in HINTS) for prompts in texts for text in prompts) == 2 * 2 * 2
    assert len({*texts}) == views - (texts[0] == texts[2 * NAMES.index("shuffled")])


def test_several_tasks_have_a_table_each_and_what_does_not_apply_is_said(run):
    config = json.loads((run / "config.json").read_text()) | {"task": "plant-pathology,insults"}
    (run / "config.json").write_text(json.dumps(config))
    evaluate_robustness(run, 1, 1, "hello-world")
    plants, insults = json.loads((run / "robust.json").read_text())["tasks"]
    assert (plants["task"], insults["task"]) == ("plant-pathology", "insults")
    assert [len(table["rows"]) for table in (plants, insults)] == [2 * (len(NAMES) + 1)] * 2
    assert "trained, renamed: not measured, it changes nothing of this task." in plants["notes"]
    assert len([name for name in pieces(run) if "held-out" in name]) == 2  # once per policy, in both tables


def test_a_brief_prompt_is_said_not_to_show_the_description(run):
    for step in ("step_0", "step_2"):
        config = json.loads((run / step / "config.json").read_text()) | {"nanomle_kind": "tiny"}
        (run / step / "config.json").write_text(json.dumps(config))
    evaluate_robustness(run, 1, 1)
    assert "does not show the task's description" in (run / "robust.md").read_text()


def test_files_that_change_without_the_prompt_are_said(run):
    """insults' brief prompt names only Comment and Insult, which keep their names: renaming Date changes nothing in it."""
    config = json.loads((run / "config.json").read_text()) | {"task": "insults"}
    (run / "config.json").write_text(json.dumps(config))
    evaluate_robustness(run, 1, 1)
    assert "the prompt is that of none" not in (run / "robust.md").read_text()
    for step in ("step_0", "step_2"):
        shape = json.loads((run / step / "config.json").read_text()) | {"nanomle_kind": "tiny"}
        (run / step / "config.json").write_text(json.dumps(shape))
    evaluate_robustness(run, 1, 1)
    assert "- renamed, shuffled, reordered: the prompt is that of none" in (run / "robust.md").read_text()


def test_a_prompt_that_the_model_cannot_read_is_not_measured_and_said(run):
    for step in ("step_0", "step_2"):
        config = json.loads((run / step / "config.json").read_text()) | {"max_position_embeddings": 64}
        (run / step / "config.json").write_text(json.dumps(config))
    evaluate_robustness(run, 1, 1)
    (task,) = json.loads((run / "robust.json").read_text())["tasks"]
    assert all("context of 64" in row["left_out"] and "valid_frac" not in row for row in task["rows"])


def test_programs_that_our_fault_took_are_counted_not_failed(run, monkeypatch, capsys):
    sandbox = FakeSandbox(infra=1)
    monkeypatch.setattr(robust, "build_sandbox", lambda config: contextlib.nullcontext(sandbox))
    monkeypatch.setattr("rollout.extract_program", lambda text: "x = 1")
    evaluate_robustness(run, 2, 1)
    (task,) = json.loads((run / "robust.json").read_text())["tasks"]
    assert task["rows"][0]["programs"] == 1 and task["rows"][1]["programs"] == 2
    assert "start, none: 1 of 2 programs are left out, by our fault; evaluate again." in task["notes"]
    evaluate_robustness(run, 2, 1)  # our fault is gone: the piece that it hurt is made again, and no other
    (task,) = json.loads((run / "robust.json").read_text())["tasks"]
    assert all(row["programs"] == 2 for row in task["rows"]) and not any("our fault" in note for note in task["notes"])
    assert capsys.readouterr().out.count("programs ...") == 2 * (len(NAMES) + 1) + 1


# ---------------------------------------------------------------------------------------------------------- what is refused


def test_the_held_out_task():
    assert choose_held_out(Config(task="random-pizza"), None) == "chatbot-arena"
    assert choose_held_out(Config(task="chatbot-arena,insults"), None) == "essay-scoring"
    assert choose_held_out(Config(task="all"), None) is None
    assert choose_held_out(Config(task="all"), "hello-world") == "hello-world"
    for name, reason in (("random-acts-of-pizza", "trained on it"), ("pizzas", "unknown task")):
        with pytest.raises(UsageError, match=reason):
            choose_held_out(Config(task="random-pizza"), name)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--repeats", "2"], "go with --robust"),
        (["--held-out", "insults"], "go with --robust"),
        (["--robust", "--repeats", "0"], "--repeats 0 must be positive"),
        (["--robust", "--samples", "0"], "--samples 0 must be positive"),
        (["--robust", "--held-out", "random-pizza"], "the run was trained on it"),
        (["--robust", "--held-out", "nonsense"], "unknown task"),
    ],
)
def test_bad_flags_are_refused_before_any_work(run, monkeypatch, flags, reason):
    monkeypatch.setattr(robust, "load_run_tasks", lambda *_: pytest.fail("work was begun"))
    with pytest.raises(UsageError, match=reason) as error:
        eval.main([str(run), *flags])
    assert "\n" not in str(error.value)
    assert not (run / "robust").exists()


def test_what_is_no_run_is_refused_in_one_line(tmp_path):
    for arguments in (["--robust"], [str(tmp_path), "--robust"], [str(tmp_path), "--robust", "--repeats", "x"]):
        with pytest.raises(UsageError) as error:
            eval.main(arguments)
        assert "\n" not in str(error.value)
