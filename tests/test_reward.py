"""reward.py against the equations, and the ways in which a program could earn what it should not."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest

from instrument import MILESTONES, marker, new_token
from reward import InfraError, compute_reward, repetition, trains_model
from sandbox import Execution
from tasks import GraderFault, InvalidSubmission

TOKEN = "0123456789abcdef"
TRAINED = (
    "model = LogisticRegression()\nmodel.fit(X, y)\np = model.predict(X)\npd.DataFrame(p).to_csv('submission.csv')\n"
)
COPIED = "import pandas as pd\npd.read_csv('sample_submission.csv').to_csv('submission.csv', index=False)\n"


def read_number(submission):
    """Grade a submission that holds its own score."""
    try:
        return float(submission)
    except ValueError:
        raise InvalidSubmission("row 3: not a number") from None


def make_task(best=1.0, worst=0.0, grade=read_number):
    def normalise(score):
        return max(-1.0, min(1.0, 2 * (score - worst) / (best - worst) - 1))

    return SimpleNamespace(name="toy", grade=grade, normalise=normalise)


def make_execution(status="ok", submission=b"0.75", milestones=0, **fields):
    stdout = "".join(f"epoch\n{TOKEN} {name}\n" for name in MILESTONES[:milestones])
    return Execution(status=status, submission=submission, stdout=stdout, **fields)


def total(task=None, program=TRAINED, **fields):
    return compute_reward(task or make_task(), program, make_execution(**fields), TOKEN).total


@pytest.mark.parametrize("count", range(8))
def test_a_failed_program_earns_a_tenth_for_each_milestone(count):
    execution = make_execution("error", None, count, stderr="Traceback\nKeyError: 'x'\n")
    reward = compute_reward(make_task(), TRAINED, execution, TOKEN)
    assert reward.total == pytest.approx(-10 + 0.1 * count)
    assert reward.partial == pytest.approx(0.1 * count)
    assert (reward.score, reward.milestones, reward.penalties) == (None, MILESTONES[:count], {})
    assert reward.reason == "error: KeyError: 'x'"


def test_weights_are_options():
    reward = compute_reward(
        make_task(), TRAINED, make_execution("error", None, 3), TOKEN, failure_reward=-4, milestone_reward=0.2
    )
    assert reward.total == pytest.approx(-3.4)


@pytest.mark.parametrize("status", ["error", "timeout", "oom", "output_limit"])
def test_a_run_that_did_not_end_well_fails_even_with_a_submission(status):
    reward = compute_reward(make_task(), TRAINED, make_execution(status, b"1", 7), TOKEN)
    assert reward.total == pytest.approx(-9.3)
    assert reward.score is None and reward.reason.startswith(status)


def test_a_valid_submission_earns_its_normalised_score_and_no_partial_credit():
    reward = compute_reward(make_task(), TRAINED, make_execution(milestones=7), TOKEN)
    assert (reward.total, reward.score, reward.reason, reward.penalties) == (0.5, 0.75, "", {})
    assert reward.milestones == MILESTONES
    assert reward == compute_reward(make_task(), TRAINED, make_execution(milestones=7), TOKEN)


@pytest.mark.parametrize("code", [0, None])
def test_an_exit_before_the_submission_is_no_success(code):
    reward = compute_reward(make_task(), TRAINED, make_execution("ok", None, 2, exit_code=code), TOKEN)
    assert reward.total == pytest.approx(-9.8)
    assert reward.reason == "no submission: submission.csv was not written"


def test_an_invalid_submission_fails_with_the_graders_reason():
    reward = compute_reward(make_task(), TRAINED, make_execution(submission=b"x", milestones=7), TOKEN)
    assert reward.total == pytest.approx(-9.3)
    assert reward.reason == "invalid submission: row 3: not a number"


def test_the_sandboxs_own_notes_are_kept_in_the_reason():
    task = make_task()
    linked = make_execution(submission=None, submission_note="a symbolic link")
    slow = make_execution("timeout", None, note="limit of 60 s")
    assert compute_reward(task, TRAINED, linked, TOKEN).reason == "no submission: a symbolic link"
    assert compute_reward(task, TRAINED, slow, TOKEN).reason == "timeout: limit of 60 s"


@pytest.mark.parametrize(("best", "worst"), [(1.0, 0.0), (0.0, 2.0)])
def test_a_better_score_earns_more_and_invalid_less_than_any(best, worst):
    task = make_task(best, worst)
    steps = [worst + (best - worst) * i / 20 for i in range(21)]  # from worst to best, for both directions
    for program in (TRAINED, COPIED):
        rewards = [total(task, program, submission=str(score).encode()) for score in steps]
        assert rewards == sorted(set(rewards)) and len(rewards) == 21  # strictly increasing
        assert total(task, program, submission=b"nonsense", milestones=7) < rewards[0]


def test_a_program_that_prints_every_milestone_itself_earns_nothing():
    forged = "".join(f"{name}\n{new_token()} {name}\n{marker(name, new_token())}\n" for name in MILESTONES)
    reward = compute_reward(make_task(), TRAINED, Execution("error", stdout=forged), TOKEN)
    assert reward.total == -10 and reward.milestones == ()


def test_infrastructure_errors_are_no_reward():
    with pytest.raises(InfraError, match="disk full"):
        compute_reward(make_task(), TRAINED, make_execution("infra_error", None, note="disk full"), TOKEN)

    def faulty(submission):
        raise GraderFault("answers of one class")

    with pytest.raises(InfraError, match="one class"):
        compute_reward(make_task(grade=faulty), TRAINED, make_execution(), TOKEN)
    with pytest.raises(InfraError, match="nan"):
        compute_reward(make_task(grade=lambda submission: math.nan), TRAINED, make_execution(), TOKEN)


def test_the_no_model_penalty_needs_no_milestone_prints():
    reward = compute_reward(make_task(), COPIED, make_execution(submission=b"0.5"), TOKEN)
    assert reward.penalties == {"no_model": 0.5} and reward.milestones == ()
    assert not compute_reward(make_task(), TRAINED, make_execution(submission=b"0.5"), TOKEN).penalties


def test_a_constant_submission_pays_the_no_model_penalty():
    reward = compute_reward(make_task(), COPIED, make_execution(submission=b"0.5"), TOKEN)
    assert (reward.total, reward.penalties) == (-0.5, {"no_model": 0.5})
    reward = compute_reward(make_task(), COPIED, make_execution(submission=b"0.5"), TOKEN, no_model_penalty=0)
    assert (reward.total, reward.penalties) == (0, {})


@pytest.mark.parametrize("failure_reward", [-10.0, -3.0, -1.8])
def test_penalties_never_push_a_valid_program_below_a_failed_one(failure_reward):
    options = {"failure_reward": failure_reward, "no_model_penalty": 100.0, "repetition_penalty": 100.0}
    program = COPIED * 9
    failed = compute_reward(make_task(), program, make_execution("error", None, 7), TOKEN, **options)
    worst = compute_reward(make_task(), program, make_execution(submission=b"0"), TOKEN, **options)
    better = compute_reward(make_task(), program, make_execution(submission=b"0.1"), TOKEN, **options)
    assert failed.total < worst.total < better.total
    assert worst.total == pytest.approx(-1 - sum(worst.penalties.values()))


def test_weights_by_which_a_failed_program_could_win_are_refused():
    with pytest.raises(ValueError, match="lower it"):
        compute_reward(make_task(), TRAINED, make_execution(), TOKEN, failure_reward=-1.0)
    with pytest.raises(ValueError, match="negative"):
        compute_reward(make_task(), TRAINED, make_execution(), TOKEN, no_model_penalty=-1.0)


def test_repetition_by_hand():
    assert repetition("") == repetition("x = 1") == 0
    assert repetition("x = 1\n" * 9) == pytest.approx(1 - 3 / 20)  # 27 words, 20 8-grams, 3 distinct
    assert repetition(" ".join(map(str, range(100)))) == 0
    assert repetition(TRAINED) < 0.05


def test_repetition_costs_only_when_asked():
    program = TRAINED * 9
    assert total(program=program) == 0.5
    reward = compute_reward(make_task(), program, make_execution(), TOKEN, repetition_penalty=0.2)
    assert reward.total == pytest.approx(0.5 - 0.2 * repetition(program))
    assert reward.penalties == {"repetition": pytest.approx(0.2 * repetition(program))}


@pytest.mark.parametrize(
    "program",
    [
        TRAINED,
        "p = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(X, y).predict_proba(T)",
        "search = GridSearchCV(SVC(), {})\nsearch.fit(X, y)\ns = search.decision_function(T)",
        "for fold in folds:\n    clf = clone(base)\n    clf.fit(X[fold], y[fold])\n    p += clf.predict(T)",
        "def main():\n    m = build()\n    m.fit(X, y)\n    return m.predict(T)\nsub['y'] = main()",
        "b = lgb.train(params, data)\np = b.predict(T)",
        "net = nn.Sequential(nn.Linear(2, 1))\nfor e in range(9):\n    f(net(X)).backward()\np = net(T)",
        "p = cross_val_predict(Ridge(), X, y)",
    ],
)
def test_programs_that_train_a_model(program):
    assert trains_model(program)


@pytest.mark.parametrize(
    "program",
    [
        "",
        "model.fit(",
        COPIED,
        "sub['y'] = train['y'].mean()\nsub.to_csv('submission.csv')",
        "# model.fit(X, y); model.predict(T)\ns = 'model.fit(X, y).predict(T)'",
        "vec = TfidfVectorizer()\nvec.fit(X)\nsub['y'] = vec.transform(T).mean()",
        "scaler = StandardScaler().fit(X)\np = scaler.transform(T)",
        "model = LogisticRegression()\nmodel.fit(X, y)\nsub['y'] = 0.5",
        "p = DummyClassifier().fit(X, y).predict(T)",
        "dummy = DummyRegressor()\ndummy.fit(X, y)\np = dummy.predict(T)",
        "def main():\n    model.fit(X, y)\n    return model.predict(T)\nsub['y'] = 1",
    ],
)
def test_programs_that_do_not(program):
    assert not trains_model(program)


def test_a_reward_can_be_written_as_json():
    reward = compute_reward(make_task(), COPIED, make_execution(milestones=3), TOKEN)
    assert json.loads(json.dumps(dataclasses.asdict(reward)))["milestones"] == list(MILESTONES[:3])
