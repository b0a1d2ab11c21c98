"""Programs that end in odd ways, and programs that send signals to others."""

import signal

from case import Case


def ending(name: str, program: str, statuses: tuple[str, ...], **options) -> Case:
    return Case("exits", name, program, statuses, **options)


EXITS = [
    ending("os._exit(0) before the work", "import os; print('x'); os._exit(0)", ("ok",), submission="none"),
    ending("raise SystemExit(0) before the work", "print('x'); raise SystemExit(0)", ("ok",), submission="none"),
    ending("BaseException of its own", "class E(BaseException): pass\nraise E", ("error",)),
    ending("KeyboardInterrupt and GeneratorExit", "try: raise KeyboardInterrupt\nfinally: raise GeneratorExit", ("error",)),
    ending("exception that cannot be printed", """
        class E(Exception):
            def __str__(self): raise SystemExit(0)
            __repr__ = __str__
            def __getattribute__(self, name): raise SystemExit(0)
        raise E
    """, ("error",)),
    ending("exception whose args loop", "e = Exception(); e.__cause__ = e; e.args = (e,); raise e", ("error",)),
    ending("exit code of text", "import sys; sys.exit('ok')", ("error",)),
    ending("exit code of 2**40", "import sys; sys.exit(2**40)", ("ok",), submission="none"),
    ending("exit code of -1", "import sys; sys.exit(-1)", ("error",)),
    ending("exit code that lies about its type", """
        class Code(int):
            def __and__(self, other): return 0
            def __or__(self, other): return 0
            __rand__ = __ror__ = __index__ = __and__
        raise SystemExit(Code(3))
    """, ("ok", "error"), submission="none"),
    ending("exit code that cannot be printed", """
        class Code:
            def __str__(self): raise MemoryError
        raise SystemExit(Code())
    """, ("error", "oom")),
    ending("evil excepthook", """
        import os, sys
        sys.excepthook = lambda *_: os._exit(0)
        1 / 0
    """, ("ok", "error"), submission="none"),
    ending("evil excepthook and unraisablehook", """
        import sys
        sys.excepthook = sys.unraisablehook = lambda *_: sys.exit(0)
        class A:
            def __del__(self): raise OSError
        A(); 1 / 0
    """, ("error",)),
    ending("segfault", "import ctypes; ctypes.string_at(0)", ("error",)),
    ending("segfault with a handler", """
        import ctypes, faulthandler, signal
        faulthandler.enable(); signal.signal(signal.SIGSEGV, signal.SIG_IGN)
        ctypes.memset(8, 0, 8)
    """, ("error", "timeout"), time_limit_s=1.0),
    ending("deep recursion", "def f(): f()\nf()", ("error",)),
    ending("recursion without a limit", """
        import sys
        sys.setrecursionlimit(10**9)
        class A:
            def __repr__(self): return repr(self)
        repr(A())
        def f(): return [*map(lambda _: f(), [1])]
        f()
    """, ("error", "oom", "timeout")),
    ending("compiler stack", "eval('(' * 10**6)", ("error", "oom")),
    ending("abort", "import os; os.abort()", ("error",)),
    ending("SIGKILL to itself", "import os; os.kill(os.getpid(), 9)", ("error", "oom")),
    ending("pretended SIGKILL and memory exit codes", "import os; os._exit(137)", ("error", "oom")),
    ending("exit from a handler and a thread", """
        import atexit, os, threading
        atexit.register(os._exit, 0)
        threading.Thread(target=os._exit, args=(0,)).start()
        1 / 0
    """, ("ok", "error"), submission="none"),
    ending("interpreter torn down", """
        import builtins, os, sys
        sys.modules.clear(); builtins.__dict__.clear()
    """, ("error", "ok"), submission="none"),
    ending("the judge's functions replaced by frames", """
        import os, sys, threading, traceback
        frame = sys._getframe()
        while frame:
            for name in ('run_code', 'read_exit_code', 'report', 'exit_status'):
                if name in frame.f_globals: frame.f_globals[name] = lambda *_, **__: 0
            frame = frame.f_back
        threading._shutdown = traceback.print_exception = lambda *_, **__: os._exit(0)
        1 / 0
    """, ("ok", "error"), submission="none"),
]  # fmt: skip


def sending(name: str, program: str, statuses=("ok", "error"), **options) -> Case:
    """Build a program that signals other processes: seccomp refuses the call, and another uid's process is out of reach."""
    return Case("signals", name, "@TOOLS@\n" + program, statuses, ("seccomp|user",), **options)


def by_fcntl(name: str, target: str, number: int) -> Case:
    return sending(name, f"""
import fcntl, time
r, w = os.pipe()
try:
    fcntl.fcntl(r, fcntl.F_SETOWN, {target})
    fcntl.fcntl(r, 10, {number})  # F_SETSIG
    fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)
except OSError as error: print("refused:", error)
else:
    os.write(w, b"x"); time.sleep(0.3)
""")  # fmt: skip


SIGNALS = [
    sending("SIGKILL to the parent", 'attempt("kill", os.kill, os.getppid(), 9)'),
    sending("SIGSTOP to the parent", 'attempt("stop", os.kill, os.getppid(), 19)'),
    sending("SIGTERM and SIGINT to the parent", 'for n in (15, 2): attempt("kill", os.kill, os.getppid(), n)'),
    sending("SIGKILL to the zygote", 'attempt("kill", os.kill, @ZYGOTE@, 9)'),
    sending("SIGSTOP to the zygote", 'attempt("kill", os.kill, @ZYGOTE@, 19)'),
    sending("signal to the trainer", f'attempt("kill", os.kill, @TRAINER@, {int(signal.SIGUSR1)})'),
    sending("SIGKILL to a process of the same user", 'attempt("kill", os.kill, @VICTIM@, 9)'),
    sending("SIGSTOP to a process of the same user", 'attempt("kill", os.kill, @VICTIM@, 19)'),
    sending("SIGKILL to its own group", "os.kill(0, 9)"),
    sending("SIGTERM to its own group by killpg", "os.killpg(os.getpgrp(), 15)"),
    sending("SIGKILL to the parent's group", 'attempt("killpg", os.killpg, os.getpgid(os.getppid()), 9)'),
    sending("SIGKILL to the zygote's group", 'attempt("killpg", lambda: os.killpg(os.getpgid(@ZYGOTE@), 9))'),
    sending("into the parent's session by setpgid", """
try: os.setpgid(0, os.getpgid(os.getppid()))
except OSError as error: print("refused:", error)
else:
    print("ESCAPED into the group")
"""),
    sending("pidfd to the parent", """
if (fd := call("pidfd_open", os.getppid(), 0)) >= 0: attempt("by pidfd", call, "pidfd_send_signal", fd, 9, None, 0)
"""),
    sending("pidfd to a process of the same user", """
if (fd := call("pidfd_open", @VICTIM@, 0)) >= 0: attempt("by pidfd", call, "pidfd_send_signal", fd, 9, None, 0)
"""),
    sending("pidfd of /proc to a process of the same user", """
try: attempt("by /proc", call, "pidfd_send_signal", os.open("/proc/@VICTIM@", os.O_RDONLY), 19, None, 0)
except OSError as error: print("refused:", error)
"""),
    sending("tkill and tgkill", """
attempt("tkill", call, "tkill", @VICTIM@, 9)
attempt("tgkill", call, "tgkill", @VICTIM@, @VICTIM@, 9)
"""),
    sending("queued signals", """
information = (ctypes.c_int * 32)(9, 0, -1)
attempt("rt_sigqueueinfo", call, "rt_sigqueueinfo", @VICTIM@, 9, information)
attempt("rt_tgsigqueueinfo", call, "rt_tgsigqueueinfo", @VICTIM@, @VICTIM@, 9, information)
"""),
    by_fcntl("SIGKILL to the parent by F_SETOWN", "os.getppid()", 9),
    by_fcntl("SIGSTOP to the parent by F_SETOWN", "os.getppid()", 19),
    by_fcntl("SIGKILL to a process of the same user by F_SETOWN", "@VICTIM@", 9),
    by_fcntl("signal to another group by F_SETOWN", "-os.getpgid(@VICTIM@)", int(signal.SIGUSR1)),
    sending("SIGKILL to the parent by F_SETOWN_EX", """
import fcntl, struct, time
r, w = os.pipe()
try:
    fcntl.fcntl(r, 15, struct.pack("ii", 1, os.getppid()))  # F_SETOWN_EX, F_OWNER_PID
    fcntl.fcntl(r, 10, 9)
    fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(w, b"x"); time.sleep(0.3)
except OSError as error: print("refused:", error)
"""),
    sending("SIGKILL to the parent by FIOSETOWN", """
import fcntl, socket, struct, time
try:
    a, b = socket.socketpair()
    fcntl.ioctl(a, 0x8901, struct.pack("i", os.getppid()))  # FIOSETOWN
    fcntl.fcntl(a, 10, 9)
    fcntl.ioctl(a, 0x5452, struct.pack("i", 1))  # FIOASYNC
    b.send(b"x"); time.sleep(0.3)
except OSError as error: print("refused:", error)
"""),
    sending("SIGKILL to the parent by a directory notice", """
import fcntl, time
try:
    d = os.open(".", os.O_RDONLY)
    fcntl.fcntl(d, fcntl.F_SETOWN, os.getppid())
    fcntl.fcntl(d, 10, 9)
    fcntl.fcntl(d, 1026, 0x80000004)  # F_NOTIFY of created files
    open("x", "w"); time.sleep(0.3)
except (OSError, OverflowError) as error: print("refused:", error)
"""),
    sending("timer that signals another thread", """
event = (ctypes.c_int * 16)(0, 0, 9, 4, @VICTIM@)  # SIGEV_THREAD_ID
attempt("timer_create", call, "timer_create", 1, event, ctypes.byref(ctypes.c_int()))
"""),
    sending("no death with the parent", """
libc.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: none
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
import time; time.sleep(60)
""", ("timeout",), time_limit_s=0.4),
    sending("SIGSTOP to everybody", "os.kill(-1, 19)", drastic=True),
    sending("SIGKILL to everybody", "os.kill(-1, 9)", drastic=True),
    sending("SIGKILL to a range of processes", """
for pid in range(2, 3000):
    if pid != os.getpid():
        try: os.kill(pid, 9)
        except OSError: pass
""", drastic=True),
]  # fmt: skip

CASES = EXITS + SIGNALS
