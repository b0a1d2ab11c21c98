"""What happens in the process of one untrusted program: set-up, confine(), the clock stamp, the code, its end."""

import atexit
import builtins
import contextlib
import ctypes
import errno
import gc
import io
import linecache
import math
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
MIB, GIB = 2**20, 2**30
OUT_OF_MEMORY_EXIT = 137  # exit code of a program that ended by MemoryError; forging it gains nothing


def run_program(request, work: str, monitor: int, out: int, err: int, stamp: int) -> None:
    """Set up, stamp the clock, run the code, exit. Never returns; an exit without a stamp is a fault of ours."""
    exit_code = 1
    try:
        prepare_process(work, monitor, out, err, stamp)
        random.seed(request.seed)  # else every run would continue the zygote's random numbers
        sys.modules["numpy"].random.seed(request.seed % 2**32)
        confine(request)
        os.write(stamp, struct.pack("dd", time.monotonic(), read_run_delay_s("self")))
        if LINUX:  # elsewhere its end of file tells the monitor of the exit
            os.close(stamp)
        exit_code = run_code(request.program)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def prepare_process(work: str, monitor: int, out: int, err: int, stamp: int) -> None:
    """Leave the monitor's session, descriptors, directory, handlers and streams behind."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != monitor:  # it died before prctl
        os._exit(1)
    with contextlib.suppress(OSError):  # no /proc, or a read-only one
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory runs out, this process goes first
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.closerange(3, stamp)
    os.closerange(stamp + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.chdir(work)
    os.environ.update(HOME=work, TMPDIR=work)
    tempfile.tempdir = None
    atexit._clear()
    sys.argv, sys.path[:0] = ["solution.py"], [work]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for fd, name in ((1, "stdout"), (2, "stderr")):  # unbuffered: what a program printed before its deadline is kept
        stream = io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def confine(request) -> None:
    """Take from this process what the program must not have: the last step before its code."""
    cpu_s = math.ceil(request.time_limit_s) * (os.cpu_count() or 1) + 1  # threads may use every core until the deadline
    set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 2)
    set_limit(resource.RLIMIT_FSIZE, int(request.file_mib * MIB))
    set_limit(resource.RLIMIT_NOFILE, 256)
    set_limit(resource.RLIMIT_CORE, 0)
    if LINUX:
        warm_pages = int(Path("/proc/self/statm").read_text().split()[0])
        set_limit(resource.RLIMIT_AS, warm_pages * resource.getpagesize() + int(request.memory_gib * GIB))
        set_limit(resource.RLIMIT_NPROC, request.user_threads + 256)  # the kernel counts the user's; root is not bound


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit of this process; where the one we inherited is lower, keep it."""
    ceiling = resource.getrlimit(kind)[1]
    wanted = (soft, soft if hard is None else hard)
    resource.setrlimit(kind, wanted if ceiling == resource.RLIM_INFINITY else tuple(min(ceiling, x) for x in wanted))


def run_code(program: str) -> int:
    """Run the code as `python solution.py` would, to the end of its threads and exit handlers; return the exit code."""
    module = types.ModuleType("__main__")
    vars(module).update(__file__="solution.py", __builtins__=builtins)
    sys.modules["__main__"] = module
    linecache.cache["solution.py"] = (len(program), None, program.splitlines(keepends=True), "solution.py")
    exit_code = 0
    try:
        source = program.encode(errors="surrogatepass")
        exec(compile(source, "solution.py", "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        exit_code = read_exit_code(error.code)
    except BaseException as error:
        exit_code = report(error)
    threading._shutdown()
    atexit._run_exitfuncs()
    vars(module).clear()  # files that were left open are flushed
    gc.collect()
    with contextlib.suppress(Exception):  # the program may have closed or replaced it
        sys.stdout.flush()
    return exit_code


def read_exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def report(error: BaseException) -> int:
    """Print the traceback from the program's first frame on; return the exit code."""
    frames = error.__traceback__.tb_next  # None: it does not compile, and then a MemoryError is about nesting
    is_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    exit_code = OUT_OF_MEMORY_EXIT if frames and (is_memory or "allocate memory" in str(error)) else 1
    hook = sys.excepthook if sys.excepthook is not sys.__excepthook__ else traceback.print_exception
    with contextlib.suppress(Exception):
        hook(type(error), error, frames)
    return exit_code


def prctl(option: int, value: int) -> None:
    if LINUX and ctypes.CDLL(None).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) failed")


def read_run_delay_s(pid: int | str) -> float:
    """Return how long the process's main thread was ready without a core; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
