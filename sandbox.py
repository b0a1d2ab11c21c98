"""Run untrusted programs under limits, isolated, and measure them.

    trainer --socket--> zygote (exec'd fresh, imports the libraries once, one thread)        sandbox_zygote.py
                        `- fork -> monitor (trusted, one per run: deadline, output, disk, clock; kills, reaps the tree)
                                   `- fork -> program (own session, limits, user; Landlock; seccomp)  sandbox_program.py

A run starts from warm libraries in milliseconds, yet never by a fork of the trainer, whose labels, threads and secrets
are in no process that a program descends from. Request and answer travel on a socket of the run's own, as frames of
JSON and raw bytes (no pickle). Monitors end their programs when the zygote ends, which ends with the trainer.

Covered: limits on time, CPU, memory, output, files, threads and disk; survivors and zombies; secrets in the
environment; inherited descriptors; changes to the data or the libraries that the next run would see; and by the layers
of isolation.py files, other processes, the network and privileges. Programs start no processes.
Not covered: see isolation.py. Also, a program that holds deleted files open as another user escapes the disk poll where
the trainer lacks CAP_SYS_PTRACE, and milestone prints can be found by a program that looks into its own process.
Without Linux (macOS) this is best effort: cold libraries, no memory limit, no isolation; its results are marked unsafe.

    python sandbox.py PROGRAM.py --public DIR --time-limit-s 60      prints one JSON object; exit code 2: bad arguments
    python sandbox.py --status                                       which layers work on this machine, and what was seen
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from queue import SimpleQueue

import sandbox_zygote
from isolation import LINUX, Layer
from sandbox_files import find_closed_link, remove_tree

CLOCKS = ("wall", "cpu")
ENVIRONMENT_KEPT = ("PATH", "LD_LIBRARY_PATH")  # all that a program sees of the trainer's environment
ENVIRONMENT_OF_TESTS = ("NANOMLE_LANDLOCK_ABI", "NANOMLE_SANDBOX_WITHOUT")  # for the zygote: act like a lesser machine
ENVIRONMENT = {  # more than one OpenMP thread in the zygote would hang every program: threads do not survive a fork
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")},
    **{"PYTHONHASHSEED": "0", "JOBLIB_MULTIPROCESSING": "0", "MALLOC_ARENA_MAX": "2"},
    **{"LANG": "C.UTF-8", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": "", "USER": "program"},  # the GPU is the trainer's
}


class InfraError(RuntimeError):
    """Ours failed, not the program's: sandbox, disk or grader. No sample comes from it."""


@dataclass(frozen=True)
class Execution:
    """What one run did. Of long output, head and tail are kept, and a line between them counts the dropped bytes."""

    status: str  # ok | error | timeout | oom | output_limit | infra_error (ours failed: no sample)
    exit_code: int | None = None  # negative: a signal; None: ended by us
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0  # wall_s - run_delay_s, at least cpu_s; clock="cpu": at most cpu_s + 10% + 0.2 s
    cpu_s: float = 0.0  # of all threads and processes of the run, from the start of its code
    peak_rss_mib: float = 0.0
    submission: bytes | None = None
    submission_note: str = ""  # why there is none
    wall_s: float = 0.0  # from just before the code to the exit of its process
    run_delay_s: float = 0.0  # spent by its main thread waiting for a core
    queue_s: float = 0.0  # spent waiting for a worker
    setup_s: float = 0.0
    sleeper: bool = False  # ran for over 1 s, less than half of it on a core
    unsafe: bool = False  # ran without protection of files and processes (--unsafe-sandbox, or not on Linux)
    note: str = ""  # which limit ended the program, or what of ours failed

    def to_json(self) -> dict:
        """Return a JSON-able dict with the submission as text."""
        text = None if self.submission is None else self.submission.decode(errors="replace")
        return {**asdict(self), "submission": text}


class Sandbox:
    """A pool that runs at most `workers` programs at once, each on one core.

    memory_gib: address space beyond the warm libraries; output_mib: kept of each stream; file_mib: one file;
    disk_mib: growth of the work directory; submission_mib: a larger submission.csv is none.
    clock: what duration_s is read from, wall | cpu. cores: where to run; all that the process may use if not given.
    warm: modules to import before the programs, beside numpy, pandas and scikit-learn, such as torch.
    Raises InfraError if it cannot start, or protects too little and `unsafe` does not allow that.
    """

    def __init__(self, workers=1, *, memory_gib=4.0, output_mib=1, file_mib=256, disk_mib=1024, submission_mib=64,
                 clock="wall", cores=None, warm=(), unsafe=False):  # fmt: skip
        limits = {"memory_gib": memory_gib, "output_mib": output_mib, "file_mib": file_mib, "disk_mib": disk_mib}
        limits["submission_mib"] = submission_mib
        for name, value in {"workers": workers, **limits}.items():
            require_positive(name, value)
        if clock not in CLOCKS:
            raise ValueError(f"clock must be one of {', '.join(CLOCKS)}, not {clock!r}")
        self._fields = {**limits, "clock": clock}
        self._cores, self._warm, self._unsafe = cores or usable_cores(), tuple(warm), unsafe
        self.workers, self._slots = workers, SimpleQueue()
        for slot in range(workers):
            self._slots.put(slot)
        self._lock, self._closed = threading.Lock(), False
        self._root = tempfile.mkdtemp(prefix="nanomle-")  # 0700, holds the work directories
        try:
            self._start_zygote()
        except BaseException:
            remove_tree(self._root)
            raise
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")

    def submit(self, program: str, public_dir: Path | None, *, time_limit_s=120.0, seed=0) -> "Future[Execution]":
        """Queue a run of program in a directory with a copy of public_dir. Raises ValueError for bad arguments."""
        require_positive("time_limit_s", time_limit_s)
        if public_dir is not None and not Path(public_dir).is_dir():
            raise ValueError(f"public_dir is not a directory: {public_dir}")
        public = public_dir and str(Path(public_dir).resolve())
        request = {"program": program, "public_dir": public, "time_limit_s": time_limit_s, "seed": seed}
        given_up = threading.Event()
        future = self._pool.submit(self._run, {**request, **self._fields}, time.monotonic(), given_up)
        future.given_up = given_up
        return future

    def run(self, program: str, public_dir: Path | None, **options) -> Execution:
        """Submit and wait."""
        return self.submit(program, public_dir, **options).result()

    def abandon(self, future: Future) -> None:
        """End a run whose result nobody wants: it becomes an infra_error, or is cancelled if it still waits."""
        future.cancel()
        future.given_up.set()

    def status(self) -> list[Layer]:
        """Return the layers of protection, whether each is active, and what was seen when it was tried at start."""
        return self._layers

    def why_closed(self, public_dir: Path) -> str:
        """Return why programs could not read what links in the data lead to, and the way out; "" if they can."""
        if not {"user", "landlock"} <= {layer.name for layer in self._layers if layer.active}:
            return ""  # one user, or copies
        if not (path := find_closed_link(str(public_dir))):
            return ""
        return (f"programs run as another user, who cannot {'enter' if os.path.isdir(path) else 'read'} {path}, where links of "
                f"{public_dir} lead: chmod {'o+x' if os.path.isdir(path) else 'o+r'} {path}, or move the data")  # fmt: skip

    def close(self) -> None:
        """Cancel what waits, end what runs, remove every process and file of the pool."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            self._stop_zygote()
        self._pool.shutdown()
        remove_tree(self._root)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self, request: dict, submitted_at: float, given_up: threading.Event) -> Execution:
        queue_s = time.monotonic() - submitted_at
        slot = self._slots.get()
        request["core"] = self._cores[slot % len(self._cores)] if self._cores else None
        try:
            execution = self._attempt(request, given_up)
            if execution.status == "infra_error" and not (self._closed or given_up.is_set()):
                execution = self._attempt(request, given_up)
        finally:
            self._slots.put(slot)
        return replace(execution, queue_s=queue_s, unsafe=self.is_unsafe)

    def _attempt(self, request: dict, given_up: threading.Event) -> Execution:
        ours, theirs = Pipe()
        try:
            with theirs, self._lock:
                self._revive_zygote()
                socket.send_fds(self._control, [b"R"], [theirs.fileno()])
            ours.send_bytes(json.dumps(request).encode())
            give_up_at = time.monotonic() + request["time_limit_s"] + 600  # the copy of the data may take long
            while not ours.poll(0.1):
                if given_up.is_set() or time.monotonic() > give_up_at:
                    raise InfraError("given up" if given_up.is_set() else "no answer from the monitor")
            fields = json.loads(ours.recv_bytes())
            stdout, stderr = (ours.recv_bytes().decode(errors="replace") for _ in range(2))
            submission = None if fields["submission_note"] else ours.recv_bytes()
            return Execution(stdout=stdout, stderr=stderr, submission=submission, **fields)
        except (OSError, EOFError, InfraError) as error:
            return Execution("infra_error", note=str(error) or "the monitor died")
        finally:
            ours.close()

    def _start_zygote(self) -> None:
        self._control, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in (*ENVIRONMENT_KEPT, *ENVIRONMENT_OF_TESTS) if name in os.environ}
        command = [sys.executable, "-s", sandbox_zygote.__file__, self._root, *self._warm]
        log = Path(self._root, "zygote.log")
        with theirs, open(log, "wb") as output:
            self._zygote = subprocess.Popen(command, stdin=theirs, stdout=output, stderr=output, cwd=self._root,
                                            env={**environment, **ENVIRONMENT}, start_new_session=True)  # fmt: skip
        hello = b""
        while not hello.endswith(b"\n") and wait([self._control], 120) and (part := self._control.recv(2**16)):
            hello += part
        if hello.endswith(b"\n"):
            self._layers = [Layer(*fields) for fields in json.loads(hello)]
            return self._check_layers()
        *_, reason = "no answer within 120 s", *log.read_text(errors="replace").strip().splitlines()
        self._stop_zygote()
        raise InfraError(f"the sandbox cannot start: {reason}")

    def _check_layers(self) -> None:
        missing = {layer.name: layer.evidence for layer in self._layers if not layer.active}
        files_are_open = "landlock" in missing and "user" in missing
        self.is_unsafe = files_are_open or "seccomp" in missing or "together" in missing
        if self.is_unsafe and LINUX and not self._unsafe:
            self._stop_zygote()
            reasons = "; ".join(f"{name}: {missing[name]}" for name in ("landlock", "seccomp", "together") if name in missing)
            raise InfraError(f"programs could reach files or processes here ({reasons}): see README, or --unsafe-sandbox")

    def _stop_zygote(self) -> None:
        self._control.close()
        try:
            self._zygote.wait(10)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()

    def _revive_zygote(self) -> None:
        if self._closed:
            raise InfraError("the sandbox is closed")
        # once it is ready the zygote never writes: readable is end of file
        if self._control.fileno() < 0 or wait([self._control], 0):
            self._stop_zygote()
            self._start_zygote()


def usable_cores() -> list[int]:
    """Return the cores that this process may use, the last one first: the trainer's own work tends to the first."""
    return sorted(os.sched_getaffinity(0), reverse=True) if LINUX else []


def require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")


def format_status(layers: list[Layer]) -> str:
    """Return the layers as a table."""
    lines = [f"{layer.name:13} {'active' if layer.active else 'MISSING':8} {layer.evidence}" for layer in layers]
    return "\n".join(["layer         state    what was seen when it was tried", *lines])


def describe_status(sandbox: Sandbox) -> str:
    """Return one line for a log: the layers that are active, and those that are not."""
    active, missing = ([layer.name for layer in sandbox.status() if layer.active is state] for state in (True, False))
    warning = "UNSAFE, programs can reach files or processes; " if sandbox.is_unsafe else ""
    return f"sandbox: {warning}{', '.join(active)}; missing: {', '.join(missing) or 'nothing'} (python sandbox.py --status)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run one program in the sandbox.", allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"sandbox.py: {message}\n")
    parser.add_argument("program", type=Path, metavar="PROGRAM.py", nargs="?")
    parser.add_argument("--public", type=Path, metavar="DIR", help="data, placed read-only into the program's directory")
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="address space beyond the warm libraries")
    parser.add_argument("--duration-clock", choices=CLOCKS, default="wall", help="what duration_s is read from")
    parser.add_argument("--unsafe-sandbox", action="store_true", help="run even where files and processes are open to it")
    parser.add_argument("--status", action="store_true", help="print which layers of protection work here, and stop")
    options = parser.parse_args(arguments)
    if (options.program is None) != options.status:
        parser.error("give either PROGRAM.py or --status")
    try:
        require_positive("--time-limit-s", options.time_limit_s)
        program = options.program and options.program.read_bytes().decode(errors="surrogateescape")
        unsafe = options.unsafe_sandbox or options.status
        with Sandbox(memory_gib=options.memory_gib, clock=options.duration_clock, unsafe=unsafe) as sandbox:
            if options.status:
                print(format_status(sandbox.status()))
                return 0
            if options.public and (reason := options.public.is_dir() and sandbox.why_closed(options.public)):
                parser.error(reason)
            execution = sandbox.run(program, options.public, time_limit_s=options.time_limit_s)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except InfraError as error:
        parser.exit(1, f"sandbox.py: {error}\n")
    print(json.dumps(execution.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
