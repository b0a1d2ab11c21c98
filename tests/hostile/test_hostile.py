"""Every hostile program against the sandbox, one test each; and honest ones, which must work.

    pytest tests/hostile/test_hostile.py        on this machine as it is; `make hostile` does it in every mode

A case whose layer is off on this machine runs too, but its effects are a residual (xfail), listed with -rx.
"""

import collections
import re
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("elsewhere the sandbox is best effort: nothing is promised", allow_module_level=True)

import programs_labels
import programs_legitimate
import programs_memory
import programs_network
import programs_poisoning
import programs_privilege
import programs_processes
import programs_signals
import programs_submission
import programs_time
import programs_writing
from harness import IN_NAMESPACE, Harness

MODULES = (programs_time, programs_memory, programs_signals, programs_processes, programs_labels, programs_writing,
           programs_submission, programs_network, programs_privilege, programs_poisoning, programs_legitimate)  # fmt: skip
CASES = sorted((case for module in MODULES for case in module.CASES), key=lambda case: case.drastic)  # these come last
KINDS = ("time", "process-tree", "memory", "output", "exits", "signals", "other-processes", "labels", "writing",
         "submission", "network", "privilege", "poisoning", "legitimate")  # fmt: skip
REFERENCE_EVERY = 10
runs = collections.Counter()


@pytest.fixture(scope="module")
def harness():
    harness = Harness()
    status = harness.sandbox.status()
    harness.report(layers=harness.layers(), evidence={layer.name: layer.evidence for layer in status})
    yield harness
    harness.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.name.replace(' ', '-')}")
def test_program(harness, case):
    if case.drastic and not IN_NAMESPACE:
        pytest.skip("could hurt more than the run: only in a pid namespace of its own (make hostile)")
    failures = harness.attack(case)
    runs["all"] += 1
    if case.kind == "poisoning" or runs["all"] % REFERENCE_EVERY == 0:
        failures += harness.run_reference()
    missing = case.missing(harness.layers())
    if failures and missing:
        harness.report(residual=f"{case.kind}: {case.name}", without=missing, effects=failures)
        pytest.xfail(f"residual without {', '.join(missing)}: {'; '.join(failures)}")
    assert not failures, "\n".join(failures)


def test_the_next_run_is_as_the_first(harness):
    assert harness.run_reference() == []


def test_the_data_and_all_other_files_are_as_before(harness):
    assert harness.read_files() == harness.files_before


def test_nothing_is_left_running_or_lying_about(harness):
    assert harness.check_leftovers() == []


def test_every_kind_of_attack_is_there():
    count = collections.Counter(case.kind for case in CASES)
    assert set(count) == set(KINDS) and min(count.values()) >= 2 and sum(count.values()) >= 120
    assert len({(case.kind, case.name) for case in CASES}) == len(CASES)


def test_every_program_compiles():
    for case in CASES:
        compile(re.sub("@[A-Z_]+@", "1", case.fill({})), case.name, "exec")
