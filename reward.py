"""Turn one run of a program into a reward.

    failed, or no valid submission:  total = failure_reward + milestone_reward * N      N distinct milestones, 0 to 7
    valid submission:                total = task.normalise(score) - penalties          score in [-1, 1] when normalised

A failed program never beats a valid one: penalties are scaled down to half the gap between the best failed program and
the worst valid score. What is our own fault (a killed worker, a bug in a grader) is no reward at all but InfraError.

The penalties are guards against ways to a reward that teach nothing. They look at the program's text and can be
wrong in both directions, so they are small: a program that trains a model and ignores it passes, one that computes a
good answer by hand pays.
"""

import math
import re
from dataclasses import dataclass, field

from instrument import MILESTONES, reached
from sandbox import Execution, InfraError
from steps import PREDICTION, TRAINING, find_steps
from tasks import GraderFault, InvalidSubmission, Task

WORST_VALID = -1.0  # task.normalise never returns less
NGRAM_TOK = 8


@dataclass(frozen=True)
class Reward:
    """The reward of one run with its parts; dataclasses.asdict of it is JSON-able."""

    total: float
    score: float | None = None  # the grader's raw score, None without a valid submission
    partial: float = 0.0  # milestone_reward * N; it enters total only when the program failed
    milestones: tuple[str, ...] = ()  # reached, in the order of steps.MILESTONES
    penalties: dict[str, float] = field(default_factory=dict)  # as subtracted from total, by name
    reason: str = ""  # why the program failed or its submission is invalid; "" when valid


def compute_reward(
    task: Task,
    program: str,
    execution: Execution,
    token: str,
    *,
    failure_reward: float = -10.0,
    milestone_reward: float = 0.1,
    no_model_penalty: float = 0.5,
    repetition_penalty: float = 0.0,
) -> Reward:
    """Return the reward of a program (as written, not instrumented) whose run printed milestones with token.

    no_model_penalty is on: a constant submission is valid and scores about 0 beside -10 for failures, so a policy under
    pressure finds "copy the sample submission" first, and then every program it writes earns the same.
    repetition_penalty (times repetition(program)) is off: pipelines repeat themselves legitimately.
    Raises InfraError where the fault is ours, ValueError for weights by which a failed program could beat a valid one.
    """
    best_failed = failure_reward + milestone_reward * len(MILESTONES)
    if not best_failed < WORST_VALID:
        raise ValueError(
            f"--failure-reward {failure_reward} with milestones of {milestone_reward} gives a failed program up to "
            f"{best_failed}, not below {WORST_VALID}, the worst valid score: lower it"
        )
    if min(milestone_reward, no_model_penalty, repetition_penalty) < 0:
        raise ValueError(f"negative weight: {milestone_reward=}, {no_model_penalty=}, {repetition_penalty=}; 0 is off")
    score, reason = grade(task, execution)
    milestones = tuple(reached(execution.stdout, token))
    partial = milestone_reward * len(milestones)
    if score is None:
        return Reward(failure_reward + partial, None, partial, milestones, {}, reason)
    found = {
        "no_model": no_model_penalty * (not trains_model(program)),
        "repetition": repetition_penalty * repetition(program),
    }
    scale = min(1.0, (WORST_VALID - best_failed) / 2 / (sum(found.values()) or 1.0))
    penalties = {name: scale * penalty for name, penalty in found.items() if penalty > 0}
    return Reward(task.normalise(score) - sum(penalties.values()), score, partial, milestones, penalties)


def grade(task: Task, execution: Execution) -> tuple[float | None, str]:
    """Return (raw score, "") or (None, why there is none). An exit code of 0 is no success without a submission.

    Raises InfraError if the sandbox or the grader failed.
    """
    if execution.status == "infra_error":
        raise InfraError(f"the sandbox failed: {execution.note}")
    if execution.status != "ok":
        last_line = execution.stderr.strip().rpartition("\n")[2]
        return None, f"{execution.status}: {execution.note or last_line[:200]}"
    if execution.submission is None:
        return None, f"no submission: {execution.submission_note or 'submission.csv was not written'}"
    try:
        score = task.grade(execution.submission)
    except InvalidSubmission as error:
        return None, f"invalid submission: {error}"
    except GraderFault as error:
        raise InfraError(f"the grader of {task.name} failed: {error}") from error
    if not math.isfinite(score):
        raise InfraError(f"the grader of {task.name} returned {score}")
    return score, ""


def trains_model(program: str) -> bool:
    """Tell, by the syntax tree, whether a program fits an estimator (no vectoriser, scaler or dummy) and predicts."""
    return {TRAINING, PREDICTION} <= find_steps(program)


def repetition(program: str) -> float:
    """Return the share, in [0, 1], of the program's n-grams of words and signs that occurred before in it."""
    words = re.findall(r"\w+|[^\w\s]", program)
    ngrams = [tuple(words[i : i + NGRAM_TOK]) for i in range(len(words) - NGRAM_TOK + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
