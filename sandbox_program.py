"""What happens in the process of one untrusted program: set-up, isolation, the clock stamp, the code, its end."""

import atexit
import builtins
import contextlib
import errno
import gc
import io
import itertools
import linecache
import os
import random
import resource
import struct
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

from isolation import LINUX, Isolation, set_limits

OUT_OF_MEMORY_EXIT = 137  # exit code of a program that ended by MemoryError; forging it gains nothing


def run_program(request, isolation: Isolation, work: str, monitor: int, pipes: tuple[int, int, int]) -> None:
    """Set up, stamp the clock, run the code, exit. Never returns; an exit without a stamp is a fault of ours."""
    exit_code, (out, err, stamp) = 1, pipes
    try:
        ruleset = isolation.open_ruleset(work, request.data_paths)
        prepare_process(request, work, out, err, keep=(stamp, ruleset))
        set_limits(request.time_limit_s, request.memory_gib, request.file_mib, request.user_threads)
        isolation.apply(request.uid, monitor, ruleset)
        os.write(stamp, struct.pack("ddd", time.monotonic(), read_run_delay_s("self"), time.process_time()))
        if LINUX:  # elsewhere its end of file tells the monitor of the exit
            os.close(stamp)
        exit_code = run_code(request.program)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def prepare_process(request, work: str, out: int, err: int, keep: tuple[int, ...]) -> None:
    """Leave the monitor's session, descriptors, directory, handlers, streams and random numbers behind."""
    os.setsid()
    with contextlib.suppress(OSError):  # no /proc, or a read-only one
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory runs out, this process goes first
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    bounds = [2, *sorted(fd for fd in keep if fd > 2), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
    for low, high in itertools.pairwise(bounds):
        os.closerange(low + 1, high)
    os.chdir(work)
    if LINUX and request.core is not None:
        os.sched_setaffinity(0, {request.core})
    os.environ.update(HOME=work, TMPDIR=work)
    tempfile.tempdir = None
    atexit._clear()
    random.seed(request.seed)  # else every run would continue the zygote's random numbers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(request.seed % 2**32)
    sys.argv, sys.path[:0] = ["solution.py"], [work]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for fd, name in ((1, "stdout"), (2, "stderr")):  # unbuffered: what a program printed before its deadline is kept
        stream = io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


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


def read_run_delay_s(pid: int | str) -> float:
    """Return how long the process's main thread was ready without a core; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0
