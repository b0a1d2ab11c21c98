"""What the hostile programs may attack, and the check, by effects, of what came of it.

The harness has labels in a private directory, directories to write into, public data, a process of our user, listeners, and
a secret in each of these. After a run it looks at all of them; it repairs what was changed, so that a program is blamed
for its own deeds only. Processes are found by reading /proc, not by asking the code under test.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import numpy as np
import pandas as pd
from case import Case
from effects import (
    all_processes,
    build_listeners,
    children,
    compare,
    count_arrivals,
    descendants,
    describe,
    process_state,
    snapshot,
    unlock,
)

from sandbox import Execution, Sandbox
from tasks.grading import InvalidSubmission, grade_auc

PROJECT = Path(__file__).resolve().parents[2]
IN_NAMESPACE = os.environ.get("NANOMLE_HOSTILE_NAMESPACE") == "1"
REPORT = os.environ.get("NANOMLE_HOSTILE_REPORT")  # a file that gets a line of JSON for layers and residuals
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGIO)
ROWS = 200
SLACK_S, HUNG_S = 2.0, 12.0  # over the time limit: a failure; the run is given up
REMOVAL_S = 60.0  # thousands of directories go after the result is there; some file systems take 4 ms for each

REFERENCE = """
import hashlib, random, time
import numpy as np
numbers = np.genfromtxt("train.csv", delimiter=",", skip_header=1, usecols=(0, 1))
before = time.monotonic(); time.sleep(0.02); slept = time.monotonic() - before >= 0.02
random.seed(5)
draws = [random.random(), *np.random.default_rng(5).random(3), *np.random.RandomState(5).rand(3), sum(range(256, 258))]
text = repr((np.zeros(2).tolist(), numbers.sum(axis=0).round(6).tolist(), slept, open("more/note.txt").read(), draws))
print(hashlib.sha256(text.encode()).hexdigest(), "x" in dir())
"""
VICTIM = "import os, sys, time\nsecret = os.environ['VICTIM_SECRET'] + '!'\nprint(1, flush=True)\nwhile True: time.sleep(1)"


class Harness:
    """The surroundings of the runs; close() removes them."""

    def __init__(self):
        names = ("labels", "environment", "victim's environment", "victim's arguments", "other run")
        self.secrets = {name: "canary-" + secrets.token_hex(16) for name in names}
        self.scratch = Path(tempfile.mkdtemp(prefix="hostile-"))
        self.scratch.chmod(0o755)
        folders = ("private", "outside", "shared", "public")
        self.private, self.outside, self.shared, self.public = (self.scratch / name for name in folders)
        os.environ["NANOMLE_TEST_TOKEN"] = self.secrets["environment"]  # the trainer's, not for programs
        self.signals: list[int] = []
        self.handlers = {number: signal.signal(number, lambda number, _: self.signals.append(number)) for number in SIGNALS}
        self.listeners = build_listeners(self.scratch)
        self.check_listeners()
        self.write_files()
        self.victim = self.start_victim()
        self.expected = self.run_reference_alone()
        self.pool = ThreadPoolExecutor(1)
        self.sandbox = None
        self.start_sandbox()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.sandbox.close()
        self.victim.kill()
        self.victim.wait()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for listener in self.listeners.values():
            listener.close()
        del os.environ["NANOMLE_TEST_TOKEN"]
        shutil.rmtree(self.scratch)

    # set-up

    def write_files(self) -> None:
        """Write (again) every file that a program might have changed."""
        for folder in (self.private, self.outside, self.shared, self.public):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
        self.private.chmod(0o700)
        labels = self.private / "labels.csv"
        labels.write_text(f"id,y\n{self.secrets['labels']},1\n")
        labels.chmod(0o600)
        (self.outside / "kept").write_text("kept")
        (self.outside / "empty").mkdir()
        self.outside.chmod(0o755)
        self.shared.chmod(0o777)
        random = np.random.default_rng(0)
        columns = {"a": random.normal(size=ROWS).round(6), "b": random.normal(size=ROWS).round(6)}
        table = pd.DataFrame({**columns, "text": ["yes please", "no thanks"] * (ROWS // 2), "y": [1, 0] * (ROWS // 2)})
        table.to_csv(self.public / "train.csv", index=False)
        table.drop(columns="y").assign(id=range(ROWS)).to_csv(self.public / "test.csv", index=False)
        (self.public / "more").mkdir()
        (self.public / "more" / "note.txt").write_text("note")
        self.answers = pd.DataFrame({"id": range(ROWS), "y": table.y})
        self.files_before = self.read_files()

    def read_files(self) -> dict[str, tuple]:
        folders = (self.private, self.outside, self.shared, self.public)
        return {path: about for folder in folders for path, about in snapshot(folder).items()}

    def start_victim(self) -> subprocess.Popen:
        environment = {"VICTIM_SECRET": self.secrets["victim's environment"]}
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, self.secrets["victim's arguments"]], env=environment,
                                  stdout=subprocess.PIPE, cwd="/", start_new_session=True)  # fmt: skip
        victim.stdout.readline()
        self.victim_before = process_state(victim.pid)
        self.ours_before = process_state(os.getpid())
        return victim

    def start_sandbox(self) -> None:
        self.sandbox = Sandbox(1, memory_gib=1.0)
        self.write_other_run()
        first = self.sandbox.run("print(1)", self.public)
        if first.status != "ok":
            raise RuntimeError(f"the sandbox runs nothing: {first}")
        time.sleep(0.05)  # its processes end
        self.zygotes = children(os.getpid()) - {self.victim.pid}
        self.zygote_before = process_state(min(self.zygotes))
        self.processes_before = self.processes()
        self.root_before = set(os.listdir(self.sandbox._root))

    def write_other_run(self) -> None:
        self.other_run = Path(self.sandbox._root, "run-0")
        shutil.rmtree(self.other_run, ignore_errors=True)
        self.other_run.mkdir(mode=0o700)
        (self.other_run / "submission.csv").write_text(self.secrets["other run"])
        self.other_before = snapshot(self.other_run)

    def run_reference_alone(self) -> str:
        """Return what the reference prints without a sandbox."""
        command = [sys.executable, "-c", REFERENCE]
        done = subprocess.run(command, cwd=self.public, capture_output=True, text=True, check=True)
        return done.stdout

    def layers(self) -> dict[str, bool]:
        """Return which layers are active, and whether a monitor may look at the descriptors of a program of another user."""
        layers = {layer.name: layer.active for layer in self.sandbox.status()}
        capabilities = int(re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())[1], 16)
        may_trace = bool(capabilities >> 19 & 1)  # CAP_SYS_PTRACE
        return layers | {"accounting of deleted files": may_trace or not layers["user"]}

    # runs

    def fill(self, case: Case) -> str:
        port = {name: listener.getsockname() for name, listener in self.listeners.items()}
        return case.fill({
            "CANARY": self.private / "labels.csv", "SCRATCH": self.scratch, "OUTSIDE": self.outside, "SHARED": self.shared,
            "PUBLIC": self.public, "PROJECT": PROJECT, "OTHER_RUN": self.other_run, "VICTIM": self.victim.pid,
            "TRAINER": os.getpid(), "ZYGOTE": min(self.zygotes), "PORT": port["TCP"][1], "UDP_PORT": port["UDP"][1],
            "UNIX": port["unix"], "UNIX_DGRAM": port["unix datagram"], "ABSTRACT": port["abstract"][1:].decode(),
            "ABSTRACT_DGRAM": port["abstract datagram"][1:].decode(),
        })  # fmt: skip

    def run(self, program: str, time_limit_s: float) -> tuple[Execution, float]:
        """Return the execution, of status "hung" if there is none in time, and the seconds that it took."""
        started_at = time.monotonic()
        future = self.pool.submit(self.sandbox.run, program, self.public, time_limit_s=time_limit_s)
        try:
            execution = future.result(time_limit_s + HUNG_S)
        except FutureTimeout:
            execution = Execution("hung", note=f"no result {HUNG_S:g} s after the time limit")
            for pid in sorted(descendants(os.getpid()) - {self.victim.pid}, reverse=True):
                for number in (signal.SIGKILL, signal.SIGCONT):
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
            with contextlib.suppress(FutureTimeout):
                future.result(20)
            if not future.done():
                self.pool = ThreadPoolExecutor(1)
        return execution, time.monotonic() - started_at

    def attack(self, case: Case) -> list[str]:
        """Run the case; return what went wrong, after repairing it."""
        self.signals.clear()
        execution, elapsed_s = self.run(self.fill(case), case.time_limit_s)
        failures = self.check(case, execution)
        if elapsed_s > case.time_limit_s + SLACK_S:
            failures.append(f"took {elapsed_s:.1f} s, the limit was {case.time_limit_s}")
        if failures:
            self.repair(execution.status in ("infra_error", "hung"))
        return failures

    def run_reference(self) -> list[str]:
        execution, _ = self.run(REFERENCE, 10.0)
        if (execution.status, execution.stdout) == ("ok", self.expected):
            return []
        return [f"the next run is not the same: {execution.status} {execution.stdout[-300:]!r} {execution.stderr[-300:]!r}"]

    # effects

    def check(self, case: Case, execution: Execution) -> list[str]:
        """Return everything that a run must not have done."""
        failures = []
        if execution.status not in case.statuses:
            tail = f"{execution.note} {execution.stdout[-200:]!r} {execution.stderr[-300:]!r}"
            failures.append(f"status {execution.status}, not one of {case.statuses}: {tail}")
        seen = f"{execution.stdout}\n{execution.stderr}\n{execution.note}\n{execution.submission_note}"
        seen += (execution.submission or b"").decode(errors="replace")
        failures += [f"read the secret of the {name}" for name, secret in self.secrets.items() if secret in seen]
        failures += [line[:200] for line in execution.stdout.splitlines() if line.startswith("ESCAPED")][:5]
        if case.says and case.says not in seen:
            failures.append(f"does not say {case.says!r}: {execution.stdout[-200:]!r} {execution.stderr[-300:]!r}")
        failures += self.check_submission(case, execution.submission)
        failures += [f"{count} reached the {name} listener" for name, count in count_arrivals(self.listeners).items() if count]
        failures += compare("files", self.files_before, self.read_files())
        failures += compare("the other run's files", self.other_before, snapshot(self.other_run))
        failures += compare("the other process", self.victim_before, process_state(self.victim.pid))
        failures += compare("our process", self.ours_before, process_state(os.getpid()))
        failures += compare("the zygote", self.zygote_before, process_state(min(self.zygotes)))
        failures += [f"we got signal {number}" for number in self.signals]
        return failures + self.check_leftovers()

    def check_leftovers(self) -> list[str]:
        """Return the processes and directories that a run left, and whether the sandbox had to start anew."""
        give_up_at = time.monotonic() + REMOVAL_S
        while (names := set(os.listdir(self.sandbox._root)) - self.root_before) and time.monotonic() < give_up_at:
            time.sleep(0.01)
        give_up_at = time.monotonic() + 1.5
        while (left := self.processes() - self.processes_before) and time.monotonic() < give_up_at:
            time.sleep(0.01)
        failures = [f"left the process {pid}: {describe(pid)}" for pid in sorted(left - self.zygotes)][:5]
        if children(os.getpid()) - {self.victim.pid} != self.zygotes:
            failures.append("the zygote was replaced")
        if names:
            failures.append(f"left {sorted(names)[:5]} in the sandbox's directory")
        return failures

    def check_submission(self, case: Case, submission: bytes | None) -> list[str]:
        """Return how the submission differs from what the case allows."""
        if case.submission == "any" or (submission is None and case.submission != "valid"):
            return []
        if case.submission == "none" or submission is None:
            return [f"submission {None if submission is None else submission[:60]!r}, expected: {case.submission}"]
        started_at, verdict = time.monotonic(), "valid"
        try:
            grade_auc(submission, self.answers, "id", "y")
        except InvalidSubmission as error:
            verdict = f"invalid: {error}"
        elapsed_s = time.monotonic() - started_at
        wrong = [] if verdict.startswith(case.submission) else [f"the grader finds it {verdict}"]
        return wrong + ([f"the grader took {elapsed_s:.1f} s"] if elapsed_s > 5 else [])

    def processes(self) -> set[int]:
        """Return what a run could have left: all processes in a namespace of our own, else what descends from us."""
        found = all_processes() if IN_NAMESPACE else descendants(os.getpid())
        return {pid for pid in found - {self.victim.pid} if (process_state(pid) or {"state": "Z"})["state"] != "Z"}

    def repair(self, restart: bool) -> None:
        """Make everything as it was before the run; start a new sandbox if asked to, or if this one is not the same."""
        for pid in self.processes() - self.processes_before - children(os.getpid()) - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if process_state(self.victim.pid) != self.victim_before:
            self.victim.kill()
            self.victim.wait()
            self.victim = self.start_victim()
        ours = self.ours_before
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, ours["affinity"])
            os.setpriority(os.PRIO_PROCESS, 0, ours["nice"])
        self.ours_before = process_state(os.getpid())
        self.write_files()
        self.write_other_run()
        count_arrivals(self.listeners)
        if restart or self.check_leftovers() or process_state(min(self.zygotes)) != self.zygote_before:
            self.restart_sandbox()

    def restart_sandbox(self) -> None:
        for name in set(os.listdir(self.sandbox._root)) - self.root_before:
            unlock(os.path.join(self.sandbox._root, name))
        with contextlib.suppress(Exception):
            self.sandbox.close()
        shutil.rmtree(self.sandbox._root, ignore_errors=True)
        self.start_sandbox()

    def check_listeners(self) -> None:
        """Reach each listener ourselves: a listener that nobody can reach would count no attack."""
        for name, listener in self.listeners.items():
            with socket.socket(listener.family, listener.type) as client:
                client.connect(listener.getsockname())
                client.send(b"x")
            if count_arrivals({name: listener})[name] == 0:
                raise RuntimeError(f"the {name} listener counts nothing")

    def report(self, **what) -> None:
        if REPORT:
            with open(REPORT, "a") as file:
                file.write(json.dumps(what) + "\n")
