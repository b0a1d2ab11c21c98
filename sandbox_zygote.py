"""The trusted half of the sandbox: a warm process that forks a monitor for each run. Started by sandbox.py, never by hand.

The zygote imports the libraries once and touches no request. A monitor supervises one program: it copies the data,
drains the output, keeps the deadline and the disk limit, reads the clock and the submission, ends and reaps the tree.
"""

import contextlib
import errno
import gc
import glob
import importlib
import io
import json
import math
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import time
import types
from multiprocessing.connection import Connection
from pathlib import Path

from sandbox_program import LINUX, MIB, OUT_OF_MEMORY_EXIT, prctl, read_run_delay_s, run_program

PR_SET_CHILD_SUBREAPER = 36
OUTPUT_KILL_MIB = 64  # a program that printed this much is ended; less is only cut
DISK_ENTRIES, DISK_DEPTH = 20_000, 32  # more files end the program (unless the data are as many); looks no deeper
SKLEARN_WARM = (
    "calibration cluster compose decomposition ensemble feature_extraction.text feature_selection impute linear_model "
    "metrics model_selection naive_bayes neighbors neural_network pipeline preprocessing svm tree"
)


def run_zygote(root: str) -> None:
    """Warm up, report on the control socket, which is stdin, then fork a monitor for each socket that arrives on it."""
    control, trainer = socket.socket(fileno=os.dup(0)), os.getppid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # only the zygote may hold the socket, see below
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    del sys.modules["sandbox_program"]  # and nothing of the project is within a program's reach by import
    warm_up()
    if LINUX and (len(os.listdir("/proc/self/task")) > 1 or not os.path.exists(children_file())):
        sys.exit("the warm process needs one thread, and the kernel CONFIG_PROC_CHILDREN")
    sys.dont_write_bytecode = True
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the monitors
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    lifeline, held = os.pipe()  # only the zygote holds the writing end: when it ends, the monitors read end of file
    gc.collect()
    gc.freeze()
    control.sendall(b"+")

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
                run_monitor(Connection(descriptors[0]), lifeline, root)
            monitors.add(pid)
        os.close(descriptors[0])

    os.close(held)
    give_up_at = time.monotonic() + 3
    while monitors.intersection(children()) and time.monotonic() < give_up_at:
        time.sleep(0.005)
    end_descendants()
    remove_tree(root)


def warm_up() -> None:
    """Import what programs use and call some of it, so that no run pays for it."""
    for name in SKLEARN_WARM.split():
        importlib.import_module(f"sklearn.{name}")
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


def work_path(root: str, monitor: int) -> str:
    return os.path.join(root, f"run-{monitor}")


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


def run_monitor(connection: Connection, lifeline: int, root: str) -> None:
    """Read the request, run its program, answer with four frames: JSON, stdout, stderr, submission. Never returns."""
    try:
        started_at, work = time.monotonic(), work_path(root, os.getpid())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        request = types.SimpleNamespace(**json.loads(connection.recv_bytes()))
        try:
            fields, *blobs = supervise(request, work, lifeline, started_at)
        except Exception as error:  # ours failed: a full disk, no process to be had
            fields, blobs = {"status": "infra_error", "note": repr(error), "submission_note": "no run"}, [b"", b"", b""]
        end_descendants()
        with contextlib.suppress(OSError):  # what resists goes with the root, when the pool closes
            remove_tree(work)
        for frame in (json.dumps(fields).encode(), *blobs):
            connection.send_bytes(frame)
    finally:
        os._exit(0)


def supervise(request, work: str, lifeline: int, started_at: float) -> tuple[dict, bytes, bytes, bytes]:
    """Run the program in the new directory `work`; return fields of Execution, stdout, stderr, submission."""
    copy_public(request.public_dir, work)
    directory, monitor = os.open(work, os.O_RDONLY | os.O_DIRECTORY), os.getpid()
    disk_limit = disk_use(directory) + request.disk_mib * MIB
    request.user_threads = count_user_threads()
    (out, out_w), (err, err_w), (stamp, stamp_w) = os.pipe(), os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        run_program(request, work, monitor, out_w, err_w, stamp_w)
    for fd in (out_w, err_w, stamp_w):
        os.close(fd)
    message = os.read(stamp, 16)
    if len(message) < 16:
        raise RuntimeError(f"set-up of the program failed: {os.read(err, 4096).decode(errors='replace')}")
    begun_at, begun_delay_s = struct.unpack("dd", message)

    captures = {out: Capture(request.output_mib), err: Capture(request.output_mib)}
    gone = os.pidfd_open(pid) if LINUX else stamp
    deadline = begun_at + request.time_limit_s
    status, note, ended_at = watch(captures, gone, lifeline, deadline, directory, disk_limit)
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
    fields = {
        "status": status or exit_status(exit_code, large=peak_rss_mib > 512 * request.memory_gib),
        "exit_code": None if status else exit_code,
        "duration_s": max(ended_at - begun_at - run_delay_s, 1e-4),
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_mib": peak_rss_mib,
        "submission_note": submission_note,
        "wall_s": ended_at - begun_at,
        "run_delay_s": run_delay_s,
        "setup_s": begun_at - started_at,
        "note": note,
    }
    return fields, captures[out].kept(), captures[err].kept(), submission


def watch(captures: dict, gone: int, lifeline: int, deadline: float, directory: int, disk_limit: float):
    """Drain the pipes until `gone` is readable or a limit is hit. Return status ("" for an exit), note and clock."""
    reading, next_poll = {gone, lifeline, *captures}, time.monotonic() + 0.3
    while True:
        timeout = max(0.0, min(deadline, next_poll) - time.monotonic())
        ready = select.select(list(reading), [], [], timeout)[0]
        now = time.monotonic()
        if gone in ready:
            return "", "", now
        if lifeline in ready:
            raise RuntimeError("the zygote ended")
        if now >= deadline:
            return "timeout", "ended at the time limit", now
        for fd in captures.keys() & set(ready):
            if not captures[fd].read(fd):
                reading.discard(fd)
        if sum(capture.total for capture in captures.values()) > OUTPUT_KILL_MIB * MIB:
            return "output_limit", f"printed more than {OUTPUT_KILL_MIB} MiB", now
        if now >= next_poll:
            if disk_use(directory) > disk_limit:
                return "output_limit", f"wrote more than disk_mib or {DISK_ENTRIES} files", now
            next_poll = time.monotonic() + 0.3 + 20 * (time.monotonic() - now)  # takes at most 5% of a core


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


def read_submission(directory: int, limit: float) -> tuple[bytes, str]:
    """Return submission.csv, or b"" and the reason. Only a plain file counts; no link is followed, no FIFO awaited."""
    try:
        fd = os.open("submission.csv", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        known = {errno.ENOENT: "no submission.csv", errno.ELOOP: "a symbolic link"}
        return b"", known.get(error.errno, f"cannot be opened: {error.strerror}")
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return b"", "not a regular file"
    if about.st_nlink != 1:
        return b"", "a hard link"
    if about.st_size > limit:
        return b"", f"larger than {limit / MIB:g} MiB"
    with open(fd, "rb") as file:
        return file.read(int(limit)), ""


def disk_use(directory: int) -> float:
    """Return the bytes that a directory's files occupy; infinity if they are more than DISK_ENTRIES."""
    total, count, folders = 0, 0, ["."]
    while folders:
        for path, about in stat_entries(directory, folders.pop()):
            total += about.st_blocks * 512
            count += 1
            if count > DISK_ENTRIES:
                return math.inf
            if stat.S_ISDIR(about.st_mode) and path.count("/") < DISK_DEPTH:
                folders.append(path)
    return total


def stat_entries(directory: int, folder: str):
    """Yield (path, stat) of a folder's entries. The program may change them meanwhile: what vanishes is left out."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError:
        return
    try:
        for entry in os.scandir(fd):
            with contextlib.suppress(OSError):
                yield f"{folder}/{entry.name}", entry.stat(follow_symlinks=False)
    finally:
        os.close(fd)


def copy_public(public_dir: str | None, work: str) -> None:
    """Make the work directory with a copy of the data: a link would share the file with the next run."""
    if public_dir is None:
        return os.mkdir(work, 0o700)
    shutil.copytree(public_dir, work, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("submission.csv"))
    for folder, _, files in os.walk(work):
        os.chmod(folder, 0o555)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o444)
    os.chmod(work, 0o700)


def remove_tree(path: str) -> None:
    """Remove a directory of any depth, following no link: what is inside moves up to the top, so nothing is deep."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        top = os.open(path, flags)
    except FileNotFoundError:
        return
    folders = flatten(top, top)
    while folders:
        name = folders.pop()
        folder = os.open(name, flags, dir_fd=top)
        folders += flatten(folder, top)
        os.close(folder)
        os.rmdir(name, dir_fd=top)
    os.close(top)
    os.rmdir(path)


def flatten(folder: int, top: int) -> list[str]:
    """Unlink the files of a folder, move its subdirectories into top under new names, and return these."""
    moved = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            moved.append(secrets.token_hex(16))
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
        else:
            os.unlink(name, dir_fd=folder)
    return moved


if __name__ == "__main__":
    run_zygote(sys.argv[1])
