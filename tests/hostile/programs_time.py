"""Programs that do not want to end, and programs that want to be many."""

from case import Case

LIMIT_S = 0.4


def endless(name: str, program: str, statuses=("timeout",)) -> Case:
    return Case("time", name, program, statuses, time_limit_s=LIMIT_S)


TIME = [
    endless("busy loop", "while True: pass"),
    endless("loop that swallows every exception", """
        import signal
        signal.alarm(1)
        while True:
            try:
                while True: pass
            except BaseException: pass
    """),
    endless("sleep", "import time; time.sleep(60)"),
    endless("sleep in C", "import ctypes; ctypes.CDLL(None).sleep(60)"),
    endless("wait for input that never comes", "import os; r, w = os.pipe(); os.read(r, 1)"),
    endless("every signal ignored", """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass
    """),
    endless("every signal blocked", """
        import signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        time.sleep(60)
    """),
    endless("handlers for the CPU limit", """
        import resource, signal
        signal.signal(signal.SIGXCPU, lambda *_: None)
        resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        while True: pass
    """),
    endless("SIGSTOP to itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('on')"),
    endless("SIGSTOP to its thread", """
        import signal, threading
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    """),
    endless("exit handler that loops", """
        import atexit
        def loop():
            while True: pass
        atexit.register(loop)
    """),
    endless("exit handler that sleeps", "import atexit, time; atexit.register(time.sleep, 60)"),
    endless("__del__ that loops", """
        class A:
            def __del__(self):
                while True: pass
        a = A()
    """),
    endless("__del__ in a cycle that sleeps", """
        import time
        class A:
            def __del__(self, sleep=time.sleep): sleep(60)  # the module's names are gone by then
        a = A(); a.a = a
    """),
    endless("thread that is no daemon", "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"),
    endless("threads that start their successors", """
        import threading, time
        def next_one():
            time.sleep(0.01)
            threading.Thread(target=next_one).start()
        next_one()
    """),
    endless("one long step in C", "import re; re.match('(a+)+$', 'a' * 40 + 'b')"),
    endless("excepthook that loops", """
        import sys
        def hook(*_):
            while True: pass
        sys.excepthook = hook
        1 / 0
    """),
]

TREE = [
    Case("process-tree", "fork bomb", """
        @TOOLS@
        import time
        for _ in range(7):
            if attempt("fork", os.fork) is None: break
        time.sleep(0.5)
    """, ("ok", "error", "timeout"), ("seccomp",), 2.0, drastic=True),
    Case("process-tree", "fork bomb that flees from fork to fork", """
        @TOOLS@
        import time
        if (pid := attempt("fork", os.fork)) == 0:
            os.setsid()
            end = time.monotonic() + 3
            while time.monotonic() < end:
                if os.fork(): os._exit(0)
    """, needs=("seccomp",), drastic=True),
    Case("process-tree", "double fork and setsid that write later", """
        @TOOLS@
        import time
        if attempt("fork", os.fork) == 0:
            os.setsid()
            if os.fork() == 0:
                for _ in range(20):
                    open("@SHARED@/late", "a").write("x")
                    open("submission.csv", "a").write("x")
                    time.sleep(0.05)
            os._exit(0)
    """, needs=("seccomp",)),
    Case("process-tree", "double fork that keeps on after the deadline", """
        @TOOLS@
        import time
        if attempt("fork", os.fork) == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(4)
            os._exit(0)
        time.sleep(60)
    """, ("timeout",), ("seccomp",), LIMIT_S),
    Case("process-tree", "raw clone", """
        @TOOLS@
        import signal
        if attempt("clone", call, "clone", int(signal.SIGCHLD), 0, 0, 0, 0) == 0: os._exit(0)
    """, needs=("seccomp",)),
    Case("process-tree", "raw clone that stops being traced", """
        @TOOLS@
        if attempt("clone with CLONE_PARENT", call, "clone", 0x8000 | 0x800000 | 17, 0, 0, 0, 0) == 0:
            import time
            time.sleep(3)
            os._exit(0)
    """, needs=("seccomp",)),
    Case("process-tree", "raw clone3", """
        @TOOLS@
        arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
        if attempt("clone3", call, "clone3", ctypes.byref(arguments), 88) == 0: os._exit(0)
    """, needs=("seccomp",)),
    Case("process-tree", "raw fork and vfork", """
        @TOOLS@
        if attempt("fork", call, "fork") == 0: os._exit(0)
        if attempt("vfork", call, "vfork") == 0: os._exit(0)
    """, needs=("seccomp",)),
    Case("process-tree", "exec", """
        @TOOLS@
        import sys
        attempt("exec", os.execv, sys.executable, ["python", "-c", "print('ESCAPED exec')"])
        attempt("exec", os.execv, "/bin/sh", ["sh", "-c", "echo ESCAPED exec"])
    """, needs=("seccomp",)),
    Case("process-tree", "execveat of a descriptor", """
        @TOOLS@
        file = os.open("/bin/sh", os.O_RDONLY) if os.access("/bin/sh", os.R_OK) else 0
        words = (ctypes.c_char_p * 4)(b"sh", b"-c", b"echo ESCAPED execveat", None)
        attempt("execveat", call, "execveat", file, b"", words, None, 0x1000)
    """, needs=("seccomp",)),
    Case("process-tree", "exec of a file of its own by the loader", """
        @TOOLS@
        import glob
        open("own.sh", "w").write("#!/bin/sh\\necho ESCAPED script\\n")
        os.chmod("own.sh", 0o755)
        attempt("script", os.execv, "own.sh", ["own.sh"])
        for loader in glob.glob("/lib*/ld-linux-*"):
            attempt("loader", os.execv, loader, [loader, "/bin/echo", "ESCAPED loader"])
    """, needs=("seccomp",)),
    Case("process-tree", "child that holds stdout", """
        @TOOLS@
        import subprocess
        attempt("subprocess", subprocess.Popen, ["sleep", "20"])
    """, needs=("seccomp",)),
    Case("process-tree", "child in a session of its own that holds stdout", """
        @TOOLS@
        import subprocess
        attempt("subprocess", lambda: subprocess.Popen(["sleep", "20"], start_new_session=True))
    """, needs=("seccomp",)),
    Case("process-tree", "posix_spawn, system and popen", """
        @TOOLS@
        attempt("posix_spawn", os.posix_spawn, "/bin/true", ["true"], {})
        attempt("system", lambda: 0 if os.system("true") == 0 else -1)
        attempt("popen", lambda: os.popen("echo popen ran").read().index("ran"))
    """, needs=("seccomp",)),
    Case("process-tree", "multiprocessing", """
        @TOOLS@
        import multiprocessing
        for method in ("fork", "spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            attempt(method, context.Process(target=print, args=("child",)).start)
    """, needs=("seccomp",)),
    Case("process-tree", "fork from a thread, and pty.fork", """
        @TOOLS@
        import pty, threading
        def from_thread():
            if attempt("fork in a thread", os.fork) == 0: os._exit(0)
        thread = threading.Thread(target=from_thread); thread.start(); thread.join()
        if (attempt("pty.fork", pty.fork) or (1,))[0] == 0: os._exit(0)
    """, needs=("seccomp",)),
]  # fmt: skip

CASES = TIME + TREE
