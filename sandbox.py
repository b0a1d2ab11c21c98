"""Run untrusted programs under limits, and measure them.

    trainer --socket--> zygote (exec'd fresh, imports the libraries once, one thread)
                        `- fork -> monitor (trusted, one per run: deadline, output, disk, clock; kills, reaps the tree)
                                   `- fork -> program (own session and limits; the code runs as a fresh __main__)

A run starts from warm libraries in milliseconds, yet never by a fork of the trainer, whose labels, threads and secrets
are in no process that a program descends from. Request and answer travel on a socket of the run's own, as frames of
JSON and raw bytes (no pickle). Monitors end their programs when the zygote ends, which ends with the trainer.

Covered: limits on time, CPU, memory, output, files and disk; survivors and zombies; secrets in the environment;
inherited descriptors; changes to the data or the libraries that the next run would see.
Not covered yet: other files, the network, and signals to or tracing of processes of the same user. Their place is
confine(). A deleted file that is still open escapes the disk poll. Without /proc and prctl (macOS) this is best effort:
no memory limit, and processes that leave the program's session are not ended.

    python sandbox.py PROGRAM.py --public DIR --time-limit-s 60      prints one JSON object; exit code 2: bad arguments
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

import sandbox_zygote
from sandbox_zygote import remove_tree

ENVIRONMENT_KEPT = ("PATH", "LD_LIBRARY_PATH")  # all that a program sees of the trainer's environment
ENVIRONMENT = {  # more than one OpenMP thread in the zygote would hang every program: threads do not survive a fork
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")},
    **{"PYTHONHASHSEED": "0", "JOBLIB_MULTIPROCESSING": "0", "MALLOC_ARENA_MAX": "2"},
    **{"LANG": "C.UTF-8", "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""},  # the GPU is the trainer's
}


@dataclass(frozen=True)
class Execution:
    """What one run did. Of long output, head and tail are kept, and a line between them counts the dropped bytes."""

    status: str  # ok | error | timeout | oom | output_limit | infra_error (ours failed: no sample)
    exit_code: int | None = None  # negative: a signal; None: ended by us
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0  # wall_s - run_delay_s
    cpu_s: float = 0.0  # of all processes of the run
    peak_rss_mib: float = 0.0
    submission: bytes | None = None
    submission_note: str = ""  # why there is none
    wall_s: float = 0.0  # from just before the code to the exit of its process
    run_delay_s: float = 0.0  # spent waiting for a core
    queue_s: float = 0.0  # spent waiting for a worker
    setup_s: float = 0.0
    note: str = ""  # which limit ended the program, or what of ours failed

    def to_json(self) -> dict:
        """Return a JSON-able dict with the submission as text."""
        text = None if self.submission is None else self.submission.decode(errors="replace")
        return {**asdict(self), "submission": text}


class Sandbox:
    """A pool that runs at most `workers` programs at once. Raises RuntimeError if it cannot start.

    memory_gib: address space beyond the warm libraries; output_mib: kept of each stream; file_mib: one file;
    disk_mib: growth of the work directory; submission_mib: a larger submission.csv is none.
    """

    def __init__(self, workers=1, *, memory_gib=4.0, output_mib=1, file_mib=256, disk_mib=1024, submission_mib=64):
        limits = {"memory_gib": memory_gib, "output_mib": output_mib, "file_mib": file_mib, "disk_mib": disk_mib}
        self._limits = {**limits, "submission_mib": submission_mib}
        for name, value in {"workers": workers, **self._limits}.items():
            require_positive(name, value)
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
        return self._pool.submit(self._run, {**request, **self._limits}, time.monotonic())

    def run(self, program: str, public_dir: Path | None, **options) -> Execution:
        """Submit and wait."""
        return self.submit(program, public_dir, **options).result()

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

    def _run(self, request: dict, submitted_at: float) -> Execution:
        queue_s = time.monotonic() - submitted_at
        execution = self._attempt(request)
        if execution.status == "infra_error" and not self._closed:
            execution = self._attempt(request)
        return replace(execution, queue_s=queue_s)

    def _attempt(self, request: dict) -> Execution:
        ours, theirs = Pipe()
        try:
            with theirs, self._lock:
                self._revive_zygote()
                socket.send_fds(self._control, [b"R"], [theirs.fileno()])
            ours.send_bytes(json.dumps(request).encode())
            if not ours.poll(request["time_limit_s"] + 600):  # the copy of the data may take long
                raise RuntimeError("no answer from the monitor")
            fields = json.loads(ours.recv_bytes())
            stdout, stderr = (ours.recv_bytes().decode(errors="replace") for _ in range(2))
            submission = None if fields["submission_note"] else ours.recv_bytes()
            return Execution(stdout=stdout, stderr=stderr, submission=submission, **fields)
        except (OSError, EOFError, RuntimeError) as error:
            return Execution("infra_error", note=str(error) or "the monitor died")
        finally:
            ours.close()

    def _start_zygote(self) -> None:
        self._control, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ}
        command = [sys.executable, "-s", sandbox_zygote.__file__, self._root]
        log = Path(self._root, "zygote.log")
        with theirs, open(log, "wb") as output:
            self._zygote = subprocess.Popen(command, stdin=theirs, stdout=output, stderr=output, cwd=self._root,
                                            env={**environment, **ENVIRONMENT}, start_new_session=True)  # fmt: skip
        if wait([self._control], 120) and self._control.recv(1):
            return
        *_, reason = "no answer within 120 s", *log.read_text(errors="replace").strip().splitlines()
        self._stop_zygote()
        raise RuntimeError(f"the sandbox cannot start: {reason}")

    def _stop_zygote(self) -> None:
        self._control.close()
        try:
            self._zygote.wait(10)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()

    def _revive_zygote(self) -> None:
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        # once it is ready the zygote never writes: readable is end of file
        if self._control.fileno() < 0 or wait([self._control], 0):
            self._stop_zygote()
            self._start_zygote()


def require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run one program in the sandbox.", allow_abbrev=False)
    parser.error = lambda message: parser.exit(2, f"sandbox.py: {message}\n")
    parser.add_argument("program", type=Path, metavar="PROGRAM.py")
    parser.add_argument("--public", type=Path, metavar="DIR", help="data, copied into the program's directory")
    parser.add_argument("--time-limit-s", type=float, default=120.0)
    parser.add_argument("--memory-gib", type=float, default=4.0, help="address space beyond the warm libraries")
    options = parser.parse_args(arguments)
    try:
        require_positive("--time-limit-s", options.time_limit_s)
        program = options.program.read_bytes().decode(errors="surrogateescape")
        with Sandbox(memory_gib=options.memory_gib) as sandbox:
            execution = sandbox.run(program, options.public, time_limit_s=options.time_limit_s)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"sandbox.py: {error}\n")
    print(json.dumps(execution.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
