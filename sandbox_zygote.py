"""The trusted half of the sandbox: a warm process that forks a monitor for each run. Started by sandbox.py, never by hand.

The zygote imports the libraries once and touches no request. A monitor supervises one program: it copies the data,
drains the output, keeps the deadline and the disk limit, reads the clock and the submission, ends and reaps the tree.
"""

import contextlib
import gc
import glob
import importlib
import io
import json
import multiprocessing.context
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path

from isolation import LINUX, MAX_THREADS, MIB, Isolation, prctl, work_path
from sandbox_files import DISK_ENTRIES, deleted_use, disk_use, place_data, read_submission, remove_tree
from sandbox_program import OUT_OF_MEMORY_EXIT, read_run_delay_s, run_program

PR_SET_CHILD_SUBREAPER = 36
OUTPUT_KILL_MIB = 64  # a program that printed this much is ended; less is only cut
SKLEARN_WARM = (
    "calibration cluster compose decomposition ensemble feature_extraction.text feature_selection impute linear_model "
    "metrics model_selection naive_bayes neighbors neural_network pipeline preprocessing svm tree"
)


def run_zygote(root: str, modules: list[str]) -> None:
    """Warm up, report on the control socket, which is stdin, then fork a monitor for each socket that arrives on it."""
    control, trainer = socket.socket(fileno=os.dup(0)), os.getppid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # only the zygote may hold the socket, see below
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    for name in ("sandbox_program", "sandbox_files", "isolation", "seccomp"):
        del sys.modules[name]  # nothing of the project is within a program's reach by import
    isolation = Isolation(root)
    isolation.enter_network()
    if LINUX:  # elsewhere a fork of warm libraries is not safe: programs import them, which counts as their time
        warm_up(modules)
    if LINUX and (len(os.listdir("/proc/self/task")) > 1 or not os.path.exists(children_file())):
        sys.exit("the warm process needs one thread, and the kernel CONFIG_PROC_CHILDREN")
    sys.dont_write_bytecode = True
    isolation.probe()
    os.unlink(isolation.canary)
    for path in glob.glob(os.path.join(root, "run-*")):
        remove_tree(path)
    if isolation.has("seccomp"):
        use_thread_locks()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the monitors
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    lifeline, held = os.pipe()  # only the zygote holds the writing end: when it ends, the monitors read end of file
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps(isolation.layers).encode() + b"\n")

    monitors: set[int] = set()
    while os.getppid() == trainer:
        ready = select.select([control], [], [], 1.0)[0]
        end_orphans(root, monitors)
        if not ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        with contextlib.suppress(OSError):  # no process to be had: the trainer reads end of file
            if (pid := os.fork()) == 0:
                os.close(held)
                control.close()  # else the trainer would not notice when the zygote dies
                run_monitor(Connection(descriptors[0]), lifeline, isolation)
            monitors.add(pid)
        os.close(descriptors[0])

    os.close(held)
    give_up_at = time.monotonic() + 3
    while monitors.intersection(children()) and time.monotonic() < give_up_at:
        time.sleep(0.005)
    end_descendants()
    remove_tree(root)


def warm_up(modules: list[str]) -> None:
    """Import what programs use and call some of it, so that no run pays for it."""
    for name in (*(f"sklearn.{name}" for name in SKLEARN_WARM.split()), *modules):
        importlib.import_module(name)
    import pandas as pd
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    frame = pd.read_csv(io.StringIO("a,b,y\n" + "1,2,0\n3,5,1\n" * 10))
    frame.to_csv(io.StringIO(), index=False)
    for model in (LogisticRegression(), GradientBoostingClassifier(n_estimators=2), RandomForestClassifier(2)):
        cross_val_score(model, frame[["a", "b"]], frame.y, cv=2, scoring="roc_auc")
    TfidfVectorizer().fit_transform(["one two", "two three"])
    if "torch" in modules:  # the first step of an optimizer imports another thousand modules
        torch = sys.modules["torch"]
        loss = torch.nn.Linear(2, 1)(torch.ones(3, 2)).sum()
        loss.backward()
        torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()


def use_thread_locks() -> None:
    """Make the locks of multiprocessing those of threading: there are no processes, and theirs are files in /dev/shm.

    multiprocessing.pool.ThreadPool takes them, and with it joblib's thread backend, so scikit-learn's n_jobs.
    """
    for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"):
        make = getattr(threading, name)
        setattr(multiprocessing, name, make)
        setattr(multiprocessing.context.BaseContext, name, lambda self, *arguments, make=make: make(*arguments))


def end_orphans(root: str, monitors: set[int]) -> None:
    """Clean up behind monitors that were killed: the processes of their runs have become the zygote's children."""
    alive = set(children())
    for pid in alive - monitors:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in monitors - alive if LINUX else ():
        monitors.discard(pid)
        with contextlib.suppress(OSError):
            remove_tree(work_path(root, pid))


def count_user_threads() -> int:
    """Return how many threads our user runs, for RLIMIT_NPROC; 0 for root, whom it does not bind."""
    total = 0
    for tasks in glob.glob("/proc/[0-9]*/task") if os.getuid() else ():
        with contextlib.suppress(OSError):
            total += len(os.listdir(tasks)) if os.stat(tasks).st_uid == os.getuid() else 0
    return total


def children_file() -> str:
    return f"/proc/self/task/{os.getpid()}/children"


def children() -> list[int]:
    """Return the process ids of our children, adopted ones too; without /proc none."""
    return [int(pid) for pid in Path(children_file()).read_text().split()] if LINUX else []


def end_descendants() -> None:
    """Kill and reap, for at most 5 s, until no child is left: what a killed process leaves behind becomes our child."""
    give_up_at = time.monotonic() + 5
    while time.monotonic() < give_up_at:
        for pid in children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.0003)


# the monitor


def run_monitor(connection: Connection, lifeline: int, isolation: Isolation) -> None:
    """Read the request, run its program, answer with four frames: JSON, stdout, stderr, submission. Never returns."""
    try:
        started_at, work = time.monotonic(), work_path(isolation.root, os.getpid())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        request = types.SimpleNamespace(**json.loads(connection.recv_bytes()))
        try:
            fields, *blobs = supervise(request, isolation, [lifeline, connection.fileno()], started_at)
        except Exception as error:  # ours failed: a full disk, no process to be had
            fields, blobs = {"status": "infra_error", "note": repr(error), "submission_note": "no run"}, [b"", b"", b""]
        end_descendants()
        with contextlib.suppress(OSError):
            remove_tree(work, time.monotonic() + 1)
        for frame in (json.dumps(fields).encode(), *blobs):
            connection.send_bytes(frame)
        with contextlib.suppress(OSError):  # what resists goes with the root, when the pool closes
            remove_tree(work)
    finally:
        os._exit(0)


def supervise(request, isolation: Isolation, lifelines: list[int], started_at: float) -> tuple[dict, bytes, bytes, bytes]:
    """Run the program in its own directory, while the lifelines hold; return Execution's fields, stdout, stderr, submission."""
    monitor, request.uid = os.getpid(), isolation.choose_uid()
    work = isolation.make_directory(request.uid)
    request.data_paths = place_data(request.public_dir, work, isolation)
    Path(work, "solution.py").write_bytes(request.program.encode(errors="surrogatepass"))
    directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    disk_limit = disk_use(directory) + request.disk_mib * MIB
    request.user_threads = count_user_threads()
    (out, out_w), (err, err_w), (stamp, stamp_w) = os.pipe(), os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        run_program(request, isolation, work, monitor, (out_w, err_w, stamp_w))
    for fd in (out_w, err_w, stamp_w):
        os.close(fd)
    message = os.read(stamp, 24)
    if len(message) < 24:
        raise RuntimeError(f"set-up of the program failed: {os.read(err, 4096).decode(errors='replace')}")
    begun_at, begun_delay_s, begun_cpu_s = struct.unpack("ddd", message)

    captures = {out: Capture(request.output_mib), err: Capture(request.output_mib)}
    gone = os.pidfd_open(pid) if LINUX else stamp
    deadline = begun_at + request.time_limit_s
    status, note, ended_at = watch(pid, captures, gone, lifelines, deadline, directory, disk_limit)
    run_delay_s = read_run_delay_s(pid) - begun_delay_s  # readable until the process is reaped
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)  # the session at one stroke; a fork bomb cannot outrun it
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    end_descendants()
    for fd, capture in captures.items():  # never wait for end of file: who is out of reach may hold the pipe
        os.set_blocking(fd, False)
        while capture.read(fd):
            pass
    submission, submission_note = read_submission(directory, request.submission_mib * MIB)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak_rss_mib = usage.ru_maxrss / (1024 if LINUX else MIB)
    wall_s = ended_at - begun_at
    cpu_s = max(usage.ru_utime + usage.ru_stime - begun_cpu_s, 0.0)
    # The delay is of the main thread, which may wait for the program's own threads: never less than the work they all did.
    duration_s = max(wall_s - run_delay_s, min(cpu_s, wall_s), 1e-4)
    fields = {
        "status": status or exit_status(exit_code, large=peak_rss_mib > 512 * request.memory_gib),
        "exit_code": None if status else exit_code,
        "duration_s": duration_s if request.clock == "wall" else min(duration_s, 1.1 * cpu_s + 0.2),
        "cpu_s": cpu_s,
        "peak_rss_mib": peak_rss_mib,
        "submission_note": submission_note,
        "sleeper": duration_s > 1 and cpu_s < duration_s / 2,
        "wall_s": wall_s,
        "run_delay_s": run_delay_s,
        "setup_s": begun_at - started_at,
        "note": note,
    }
    return fields, captures[out].kept(), captures[err].kept(), submission


def watch(pid: int, captures: dict, gone: int, lifelines: list[int], deadline: float, directory: int, disk_limit: float):
    """Drain the pipes until `gone` is readable or a limit is hit. Return status ("" for an exit), note and clock."""
    reading, next_poll = {gone, *lifelines, *captures}, time.monotonic() + 0.1
    while True:
        timeout = max(0.0, min(deadline, next_poll) - time.monotonic())
        ready = select.select(list(reading), [], [], timeout)[0]
        now = time.monotonic()
        if gone in ready:
            return "", "", now
        if set(lifelines) & set(ready):
            raise RuntimeError("the zygote ended, or the trainer gave the run up")
        if now >= deadline:
            return "timeout", "ended at the time limit", now
        for fd in captures.keys() & set(ready):
            if not captures[fd].read(fd):
                reading.discard(fd)
        if sum(capture.total for capture in captures.values()) > OUTPUT_KILL_MIB * MIB:
            return "output_limit", f"printed more than {OUTPUT_KILL_MIB} MiB", now
        if now >= next_poll:
            if disk_use(directory) + deleted_use(pid) > disk_limit:
                return "output_limit", f"wrote more than disk_mib or {DISK_ENTRIES} files", now
            if count_threads(pid) > MAX_THREADS:  # where the kernel does not count, as for root
                return "error", f"ran more than {MAX_THREADS} threads", now
            next_poll = time.monotonic() + 0.1 + 5 * (time.monotonic() - now)  # near the limit a sixth of a core, else nothing


def count_threads(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


class Capture:
    """Head and tail of a stream, half of limit_mib each."""

    def __init__(self, limit_mib: float):
        self.half, self.total, self.head, self.tail = int(limit_mib * MIB / 2), 0, bytearray(), bytearray()

    def read(self, fd: int) -> int:
        """Take what one read gives; return its size, 0 at end of file or where there is nothing."""
        try:
            chunk = os.read(fd, 2**16)
        except BlockingIOError:
            return 0
        self.total += len(chunk)
        room = self.half - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        if len(self.tail) > 4 * self.half:
            del self.tail[: -self.half]
        return len(chunk)

    def kept(self) -> bytes:
        tail = self.tail[-self.half :]
        dropped = self.total - len(self.head) - len(tail)
        marker = b"\n[... %d bytes dropped ...]\n" % dropped if dropped else b""
        return bytes(self.head + marker + tail)


def exit_status(exit_code: int, large: bool) -> str:
    """Name the end of a program that we did not end. SIGKILL on a large one is the kernel's, out of memory."""
    if exit_code == OUT_OF_MEMORY_EXIT or (exit_code == -signal.SIGKILL and large):
        return "oom"
    if exit_code == -signal.SIGXCPU:
        return "timeout"
    return "ok" if exit_code == 0 else "error"


if __name__ == "__main__":
    run_zygote(sys.argv[1], sys.argv[2:])
