"""results.py, checks.py, pieces.py: means over seeds by hand, what cannot be averaged, what is stale, what is suspicious."""

import csv
import json
from types import SimpleNamespace

import pytest

import pieces
from checkpoint import UsageError
from checks import check_program, count_predictions, describe_checks
from config import Config
from pieces import common_dependencies, digest_file, digest_weights, load_or_make
from results import EVERYONE, aggregate, compare, mean_and_error, to_csv, to_markdown, write_table
from reward import Reward
from sandbox import Execution
from tasks import load_task

FINE = {
    "not_constant": True, "distinct_predictions": 9, "model_trained": True, "penalties": {}, "labels_in_public_files": False,
    "labels_in_library": False, "file_isolation": {"landlock": True}, "milestones": ["IMPORTS_DONE"], "milestones_missing": [],
    "deterministic": True, "scores": [0.7, 0.7], "second_run": "", "duration_s": 0.1,
}  # fmt: skip


def entry(seed, scores, higher=True, task="t", data="twin", **changes):
    """An entry of eval.json; scores of start, trained, constant, linear, tuned, demonstrations."""
    part = {
        who: {"n": 4, "mean_reward": -seed, "test": {"valid_frac": 0.25 * (seed + 1)},
              "reported": {"score": score, "normalised": None if score is None else 2 * score - 1, "medal": None}}
        for who, score in zip(EVERYONE, scores, strict=True)
    }  # fmt: skip
    common = {"task": task, "data": data, "metric": "auc", "temperature": 0.7, "seed": seed, "samples": 4, "split": "test",
              "protocol": 1, "higher_is_better": higher, "published": {"gpt": 0.9}, "run": f"runs/{seed}",
              "checks": {"start": None, "trained": FINE}}  # fmt: skip
    for who in ("linear", "tuned"):
        part[who]["test"] = part[who]["reported"]["score"]  # one program: a score, no statistics
    policies = {who: part.pop(who) for who in ("start", "trained")}
    return {**common, **policies, "baselines": part, **changes}


SEEDS = [
    entry(0, (0.5, 0.6, 0.5, 0.58, 0.7, 0.6)),
    entry(1, (0.5, 0.7, 0.5, 0.62, 0.8, 0.9)),
    entry(2, (0.5, 0.8, 0.5, 0.72, 0.9, 0.6)),
]


def test_mean_and_standard_error_by_hand():
    mean, error = mean_and_error([1.0, 2.0, 4.0])  # deviations -4/3, -1/3, 5/3: variance 42/9/2 = 7/3
    assert mean == pytest.approx(7 / 3) and error == pytest.approx((7 / 9) ** 0.5)
    assert mean_and_error([0.3]) == (0.3, None)


def test_the_best_of_fewer_programs_is_averaged_and_counted():
    """Two tasks: at k = 1 the trained policy is ahead in both, at k = 4 in one (in the other, lower is better)."""

    def with_best(result, **best):
        for who, of_k in best.items():
            part = result[who] if who in result else result["baselines"][who]
            part["test"]["best_of_k"] = dict(zip(("1", "4"), of_k, strict=True))
        return result

    scores = (0.5, 0.6, 0.5, 0.58, 0.7, 0.6)
    rows = aggregate([
        with_best(entry(0, scores), start=(0.5, 0.6), trained=(0.6, 0.7), demonstrations=(0.5, 0.5)),
        with_best(entry(1, scores), start=(0.5, 0.6), trained=(0.8, 0.7), demonstrations=(0.5, 0.9)),
        with_best(entry(0, scores, higher=False, task="u"), start=(0.5, 0.4), trained=(0.4, 0.4), demonstrations=(0.5, 0.3)),
    ])  # fmt: skip
    lines = to_markdown(rows).split("## With fewer programs")[1].splitlines()
    assert "| t | 0.500 / 0.700 / 0.500 | 0.600 / 0.700 / 0.700 | – / – / – | – / – / – | 0.500 / 0.600 / 0.600 |" in lines
    assert "| u | 0.500 / 0.400 / 0.500 | 0.400 / 0.400 / 0.300 | – / – / – | – / – / – | 0.500 / 0.600 / 0.600 |" in lines
    assert "| trained ahead of start | 2 of 2 | 1 of 2 | – | – | 1 of 2 |" in lines
    assert "| trained ahead of demonstrations | 2 of 2 | 0 of 2 | – | – | 0 of 2 |" in lines


def test_of_fewer_programs_seeds_are_compared_in_pairs():
    """Of the harder seed the starting policy has no best of 4: the means are of other seeds, the pair says who is ahead."""
    easy, hard = (entry(seed, (score, score + 0.05, 0.5, 0.5, 0.5, 0.5)) for seed, score in ((0, 0.8), (1, 0.0004)))
    easy["start"]["test"]["best_of_k"], hard["start"]["test"]["best_of_k"] = {"4": 0.80}, {}
    easy["trained"]["test"]["best_of_k"], hard["trained"]["test"]["best_of_k"] = {"4": 0.85}, {"4": 0.0004}
    lines = to_markdown(aggregate([easy, hard])).split("## With fewer programs")[1].splitlines()
    assert next(line for line in lines if line.startswith("| trained ahead of start")).split(" | ")[2] == "1 of 1"
    assert next(line for line in lines if line.startswith("| t ")).split(" | ")[2].startswith("0.800 [1 of 2 seeds] / 0.425 /")


def test_seeds_of_a_task_are_one_row():
    (row,) = aggregate(SEEDS)
    assert row["seeds"] == 3 and row["samples"] == 4
    assert row["who"]["trained"]["score"] == pytest.approx((0.7, 0.1 / 3**0.5, 3))
    assert row["who"]["trained"]["normalised"] == pytest.approx((0.4, 0.2 / 3**0.5, 3))
    assert row["who"]["start"]["valid_frac"] == pytest.approx((0.5, 0.25 / 3**0.5, 3))
    assert row["who"]["start"]["mean_reward"] == pytest.approx((-1, 1 / 3**0.5, 3))
    assert row["who"]["tuned"]["valid_frac"] is None  # one program is no share


def test_differences_are_taken_seed_by_seed():
    """Linear is behind by .02, .08, .08: .06 ± .02. Unpaired errors, .058 and .042, would hide that."""
    (row,) = aggregate(SEEDS)
    assert row["ahead"]["linear"] == pytest.approx((0.06, 0.02, 3))
    beats, fails = compare(row)
    assert [text.split()[0] for text in beats] == ["start", "constant", "linear"]
    assert [text.split()[0] for text in fails] == ["tuned", "demonstrations"]  # the last: 0 ± .115


def test_a_difference_within_its_error_is_no_win():
    (row,) = aggregate([entry(0, (0.5, 0.6, 0.5, 0.5, 0.5, 0.5)), entry(1, (0.5, 0.45, 0.5, 0.5, 0.5, 0.5))])
    assert row["ahead"]["linear"] == pytest.approx((0.025, 0.075, 2)) and compare(row)[0] == []


def test_a_difference_of_the_last_digit_is_no_win(tmp_path):
    """A third for each author is the constant prediction; its log loss and log 3 differ in the last digit."""
    task = load_task("spooky-author", tmp_path, "test", salt=b"x")
    thirds = "\n".join(["id,EAP,HPL,MWS", *(f"{i},{1 / 3},{1 / 3},{1 / 3}" for i in task.answers["id"])])
    score = task.grade(thirds.encode())
    assert 0 < task.baseline - score < 1e-12
    for seeds in (1, 2):
        scores = (score, score, *[task.baseline] * 4)
        (row,) = aggregate([entry(seed, scores, higher=False) for seed in range(seeds)])
        assert compare(row)[0] == [] and len(compare(row)[1]) == 5


def test_where_lower_is_better_the_lower_score_wins():
    (row,) = aggregate([entry(0, (1.1, 0.9, 1.1, 1.0, 0.8, 0.9), higher=False)])
    beats, fails = compare(row)
    assert [text.split()[0] for text in beats] == ["start", "constant", "linear"]
    assert [text.split()[0] for text in fails] == ["tuned", "demonstrations"] and row["ahead"]["tuned"][0] == pytest.approx(
        -0.1
    )


def test_a_baseline_that_failed_on_a_seed_is_counted_out_loud():
    broken = entry(1, (0.5, 0.7, 0.5, None, 0.8, 0.9))
    broken["baselines"]["linear"]["reason"] = "timeout: 60 s"
    (row,) = aggregate([SEEDS[0], broken])
    assert row["who"]["linear"]["score"] == (0.58, None, 1) and row["ahead"]["linear"][2] == 1
    text = to_markdown([row])
    assert "[1 of 2 seeds]" in text and "seed 1: linear: timeout: 60 s" in text


@pytest.mark.parametrize("change", [{"samples": 8}, {"split": "val"}, {"temperature": 1.0}, {"protocol": 2}, {"seed": 0}])
def test_what_is_not_alike_is_not_averaged(change):
    with pytest.raises(UsageError, match=f"{next(iter(change))}"):
        aggregate([SEEDS[0], {**SEEDS[1], **change}])


def test_twins_and_real_data_are_rows_of_their_own_and_tasks_too():
    rows = aggregate([*SEEDS, entry(0, (0.5,) * 6, data="real"), entry(0, (0.5,) * 6, task="u")])
    assert [(row["task"], row["data"], row["seeds"]) for row in rows] == [("t", "twin", 3), ("t", "real", 1), ("u", "twin", 1)]


def test_published_scores_stand_apart_from_a_twin():
    text = to_markdown(aggregate(SEEDS))
    table, published = text.split("## published (real data)")
    assert "0.9 |" in published and "gpt" not in table and "Not to be compared with the twins above (t)" in published
    lines = list(csv.DictReader(to_csv(aggregate(SEEDS)).splitlines()))
    assert {line["who"]: line["data"] for line in lines} == {**dict.fromkeys(EVERYONE, "twin"), "gpt": "published (real data)"}


def test_the_table_is_written_three_times_with_the_same_numbers(tmp_path):
    text = write_table(SEEDS, tmp_path)
    assert "0.7000 ± 0.0577" in text and (tmp_path / "results.md").read_text() == text
    lines = {line["who"]: line for line in csv.DictReader((tmp_path / "results.csv").open())}
    assert float(lines["trained"]["score_mean"]) == pytest.approx(0.7) and lines["trained"]["seeds"] == "3"
    assert float(lines["trained"]["score_se"]) == pytest.approx(0.1 / 3**0.5) and lines["tuned"]["valid_frac_mean"] == ""
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_medals_are_counted():
    won = entry(0, (0.5,) * 6, data="real")
    none = entry(1, (0.5,) * 6, data="real")
    won["trained"]["reported"]["medal"], none["trained"]["reported"]["medal"] = "gold", ""
    assert "gold × 1, none × 1 |" in to_markdown(aggregate([won, none]))


# pieces


def test_a_piece_is_made_once_and_again_when_what_it_depends_on_changes(tmp_path, capsys):
    calls, path = [], tmp_path / "eval" / "t.start.json"

    def make():
        calls.append(1)
        return {"result": {"n": 4, "value": len(calls)}}

    depends = {"samples": 4, "weights": "abc", "shape": (1, 2)}
    assert load_or_make(path, depends, make)["result"]["value"] == 1
    assert load_or_make(path, depends, make)["result"]["value"] == 1
    assert load_or_make(path, {**depends, "weights": "abd"}, make)["result"]["value"] == 2
    assert "made anew: weights" in capsys.readouterr().out
    assert load_or_make(path, {**depends, "weights": "abd"}, make, anew=True)["result"]["value"] == 3
    path.write_text(path.read_text()[:-9])  # cut
    assert load_or_make(path, {**depends, "weights": "abd"}, make)["result"]["value"] == 4


def test_a_piece_from_which_a_fault_of_ours_took_programs_is_made_again(tmp_path):
    path = tmp_path / "t.start.json"
    load_or_make(path, {"samples": 4}, lambda: {"result": {"n": 3}})
    assert load_or_make(path, {"samples": 4}, lambda: {"result": {"n": 4}})["result"]["n"] == 4


def test_the_digest_of_weights_is_of_their_content_and_of_no_optimizer(tmp_path):
    for name in ("model.safetensors", "config.json", "trainer.pt"):
        (tmp_path / name).write_bytes(b"1")
    first = digest_weights(tmp_path)
    (tmp_path / "trainer.pt").write_bytes(b"2")
    assert digest_weights(tmp_path) == first
    (tmp_path / "model.safetensors").write_bytes(b"2")  # of the same size
    assert digest_weights(tmp_path) != first


@pytest.mark.parametrize("name", ["grading.py", "task.py", "evaluation.py", "reward.py"])
def test_a_piece_depends_on_the_code_that_scores_it(monkeypatch, name):
    """The metrics are in tasks/grading.py; a task's own file is in the digest of its data."""
    before = common_dependencies(Config(), 4, "test", "cpu")
    monkeypatch.setattr(pieces, "digest_file", lambda path: "changed" if path.name == name else digest_file(path))
    after = common_dependencies(Config(), 4, "test", "cpu")
    assert [key for key in before if before[key] != after[key]] == ["code"]


# checks


@pytest.fixture(scope="module")
def hello(tmp_path_factory):
    return load_task("hello-world", tmp_path_factory.mktemp("hello"), "reward")


def submission(task, cells):
    ids = task.answers["id"]
    return "\n".join(["id,malignant", *(f"{i},{cells[k % len(cells)]}" for k, i in enumerate(ids))]).encode()


def check(task, cells, score, program, milestones=("TRAINING_COMPLETE",)):
    """What is seen of a program whose second run submits these cells."""
    execution = Execution("ok", 0, submission=submission(task, cells))
    sandbox = SimpleNamespace(run=lambda *_, **__: execution, status=lambda: [SimpleNamespace(name="landlock", active=True)])
    episode = SimpleNamespace(index=0, program=program, execution=execution, reward=Reward(0.0, score, milestones=milestones))
    return check_program(SimpleNamespace(sandbox=sandbox, sample_seed=lambda i: i), task, episode)


TRAINS = "m = LogisticRegression()\nm.fit(X, y)\np = m.predict_proba(X)\n"


def test_a_constant_submission_is_flagged(hello):
    seen = check(hello, ["0.5", "0.50"], 0.5, TRAINS)
    assert seen["not_constant"] is False and seen["distinct_predictions"] == 1 and seen["deterministic"]
    assert "CONSTANT" in describe_checks("trained", seen)


@pytest.mark.parametrize(
    ("cells", "count"), [(["0.5", "0.5000000001"], 1), (["0", "0.0"], 1), (["1e-9", "2e-9"], 2), (["0.5", "0.51"], 2)]
)
def test_a_constant_with_noise_is_a_constant_and_small_numbers_are_none(hello, cells, count):
    assert count_predictions(hello, submission(hello, cells)) == count


def test_a_program_that_trains_predicts_and_repeats_is_not_flagged(hello):
    score = hello.grade(submission(hello, ["0.1", "0.9"]))
    seen = check(hello, ["0.1", "0.9"], score, TRAINS)
    assert seen["not_constant"] and seen["model_trained"] and seen["deterministic"] and not seen["labels_in_public_files"]
    assert "nothing suspicious" in describe_checks("trained", seen) and "landlock on" in describe_checks("trained", seen)
    json.dumps(seen)


def test_a_second_run_with_another_score_and_a_program_without_a_model_are_flagged(hello):
    seen = check(hello, ["0.1", "0.9"], 0.123, "print(1)", milestones=())
    line = describe_checks("trained", seen)
    assert not seen["deterministic"] and "NOT DETERMINISTIC" in line and "NO MODEL TRAINED" in line
    assert len(seen["milestones_missing"]) == 7


def test_predictions_of_several_columns_are_counted_as_rows(tmp_path):
    task = load_task("spooky-author", tmp_path, "reward", salt=b"x")
    rows = ["0.2,0.3,0.5", "0.2,0.5,0.3"]
    text = "\n".join(["id,EAP,HPL,MWS", *(f"{i},{rows[k % 2]}" for k, i in enumerate(task.answers["id"]))])
    assert count_predictions(task, text.encode()) == 2 and count_predictions(task, b"id\n1") is None
