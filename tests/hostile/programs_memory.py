"""Programs that take too much memory or print too much. The suite runs with 1 GiB beyond the warm libraries."""

from case import Case

TOO_MUCH = ("oom", "error")  # a program may catch the MemoryError; then it ends with ok and must not have succeeded


def memory(name: str, program: str, statuses=(*TOO_MUCH, "ok"), time_limit_s=20.0, **options) -> Case:
    return Case("memory", name, program, statuses, time_limit_s=time_limit_s, **options)  # slow under load


MEMORY = [
    memory("huge and untouched", "x = bytearray(8 << 30); print('ESCAPED 8 GiB')", TOO_MUCH),
    memory("huge and untouched by mmap", "import mmap; x = mmap.mmap(-1, 8 << 30); print('ESCAPED 8 GiB')", TOO_MUCH),
    memory("huge and touched", "import numpy; x = numpy.ones(1 << 29); print('ESCAPED 4 GiB')", TOO_MUCH),
    memory("touched piece by piece", """
        x = []
        for _ in range(40): x.append(b'x' * (64 << 20))
        print('ESCAPED 2.5 GiB')
    """, TOO_MUCH),
    memory("many small objects", """
        x = []
        for i in range(2 * 10**6): x.append(bytes(1000))
        print('ESCAPED 2 GB')
    """, TOO_MUCH),
    memory("lists in lists", "x = [0]\nwhile len(x) < 1 << 29: x = x + x\nprint('ESCAPED 4 GiB')", TOO_MUCH),
    memory("mmap without reserve, then mremap", """
        @TOOLS@
        libc.mmap.restype = ctypes.c_long
        a = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x4022, -1, ctypes.c_long(0))
        attempt("mremap to 8 GiB", call, "mremap", a, 1 << 20, 8 << 30, 1)
        attempt("8 GiB without reserve", libc.mmap, None, ctypes.c_size_t(8 << 30), 3, 0x4022, -1, ctypes.c_long(0))
    """),
    memory("mmap of a sparse file", """
        import mmap
        f = open('sparse', 'w+b')
        f.truncate(200 << 20)
        maps = [mmap.mmap(f.fileno(), 200 << 20) for _ in range(20)]
        print('ESCAPED 4 GB of address space')
    """, TOO_MUCH),
    memory("memfd", """
        @TOOLS@
        fd = attempt("memfd_create", call, "memfd_create", b"x", 0)
        attempt("memfd_create in huge pages", call, "memfd_create", b"x", 4)
        for _ in range(80 if fd > 0 else 0): os.write(fd, bytes(16 << 20))
    """, needs=("seccomp",)),
    memory("memfd of Python and memfd_secret", """
        @TOOLS@
        attempt("os.memfd_create", os.memfd_create, "x")
        attempt("memfd_secret", call, "memfd_secret", 0)
    """, needs=("seccomp",)),
    memory("file in /dev/shm", """
        @TOOLS@
        if attempt("/dev/shm", lambda: open("/dev/shm/nanomle-escaped", "wb").write(bytes(16 << 20))):
            os.remove("/dev/shm/nanomle-escaped")
    """, needs=("landlock",)),
    memory("shared_memory of Python", """
        @TOOLS@
        from multiprocessing import shared_memory
        memory = attempt("shared_memory", lambda: shared_memory.SharedMemory(create=True, size=1 << 20))
        if memory: memory.unlink()
    """, needs=("landlock|seccomp",)),
    memory("System V shared memory, queues and semaphores", """
        @TOOLS@
        if (key := attempt("shmget", call, "shmget", 0, 1 << 20, 0o1600)) >= 0: call("shmctl", key, 0, None)
        if (key := attempt("msgget", call, "msgget", 0, 0o1600)) >= 0: call("msgctl", key, 0, None)
        if (key := attempt("semget", call, "semget", 0, 1, 0o1600)) >= 0: call("semctl", key, 0, 0)
    """, needs=("seccomp",)),
    memory("POSIX message queue", """
        @TOOLS@
        if attempt("mq_open", call, "mq_open", b"nanomle-escaped", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
            call("mq_unlink", b"nanomle-escaped")
    """, needs=("seccomp",)),
    memory("thread bomb", """
        import threading, time
        threading.stack_size(32768)
        threads = []
        try:
            for _ in range(3000):
                threads.append(threading.Thread(target=time.sleep, args=(1.5,), daemon=True))
                threads[-1].start()
        except RuntimeError: pass
        time.sleep(1)
        if threading.active_count() > 1000: print('ESCAPED', threading.active_count(), 'threads')
    """, ("ok", "error", "oom", "timeout", "output_limit"), drastic=True),
    memory("some hundred threads that stay", """
        import threading, time
        threads = []
        try:
            for _ in range(600):
                threads.append(threading.Thread(target=time.sleep, args=(60,)))
                threads[-1].start()
        except RuntimeError: pass
        time.sleep(60)
    """, ("ok", "error", "oom", "timeout", "output_limit"), time_limit_s=1.0),
    memory("pipe buffers", """
        import fcntl, os
        total = 0
        try:
            for _ in range(200):
                r, w = os.pipe()
                size = 1 << 16
                for wanted in (64 << 20, 1 << 20):
                    try: size = fcntl.fcntl(w, 1031, wanted); break
                    except OSError: pass
                os.set_blocking(w, False)
                total += os.write(w, bytes(size))
                if total > 1 << 29: break
        except OSError: pass
        print('ESCAPED' if total > 1 << 29 else 'held', total, 'bytes in pipes')
    """, needs=("capabilities|user",)),
    memory("socket buffers", """
        import socket
        total, pairs = 0, []
        try:
            for _ in range(200):
                pairs.append(socket.socketpair())
                for option in (socket.SO_SNDBUF, 32):  # 32: SO_SNDBUFFORCE
                    try: pairs[-1][0].setsockopt(socket.SOL_SOCKET, option, 1 << 30)
                    except OSError: pass
                pairs[-1][0].setblocking(False)
                while total < 1 << 29: total += pairs[-1][0].send(bytes(1 << 16))
        except OSError: pass
        print('ESCAPED' if total >= 1 << 29 else 'held', total, 'bytes in sockets')
    """, needs=("capabilities|user",)),
    memory("locked memory", """
        @TOOLS@
        data = ctypes.create_string_buffer(32 << 20)
        attempt("mlock of 32 MiB", call, "mlock", ctypes.addressof(data), 32 << 20)
    """, needs=("limits", "capabilities|user")),
]  # fmt: skip


def output(name: str, program: str, statuses=("ok", "error"), **options) -> Case:
    return Case("output", name, program, statuses, **options)


FORGED = '{"status": "ok", "exit_code": 0, "submission_note": "", "duration_s": 0.001, "wall_s": 0.001, "note": ""}'

OUTPUT = [
    output("flood of stdout", "import os\nwhile True: os.write(1, b'x' * 65536)", ("output_limit",), time_limit_s=20.0),
    output("flood of stderr", "import sys\nwhile True: sys.stderr.write('x' * 65536)", ("output_limit",), time_limit_s=20.0),
    output("flood of both pipes", """
        import os, threading
        def flood(fd):
            while True: os.write(fd, b'line\\n' * 10000)
        threading.Thread(target=flood, args=(1,)).start()
        flood(2)
    """, ("output_limit",), time_limit_s=20.0),
    output("flood by a million warnings", """
        import warnings
        warnings.simplefilter('always')
        for i in range(20000): warnings.warn('x' * 2000)
    """, ("ok", "output_limit"), time_limit_s=20.0),
    output("binary on both pipes", """
        import os
        for fd in (1, 2): os.write(fd, bytes(range(256)) * 100 + b'\\xff\\xfe\\x00\\\\ud800\\x1b[2J\\x1b]0;title\\x07')
        print('end')
    """, says="end"),
    output("half a character at the end", "import os; os.write(1, b'end\\xe2\\x82')", says="end"),
    output("closed descriptors", "import os\nos.closerange(0, 1024)\ntry: print('x')\nexcept OSError: pass"),
    output("closed streams", "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close(); sys.stdout = None; 1 / 0"),
    output("pipe turned around", """
        import os
        for fd in (1, 2):
            try: os.set_blocking(fd, False); os.read(fd, 10)
            except OSError: pass
        r, w = os.pipe(); os.dup2(r, 1); os.dup2(w, 2)
        print('into nothing', file=__import__('sys').stderr)
    """),
    output("forged status line", f"import sys\nprint({FORGED!r}); print({FORGED!r}, file=sys.stderr); sys.exit(3)", ("error",)),
    output("forged frames on every descriptor", f"""
        import os, struct
        text = {FORGED!r}.encode()
        frames = b''.join(struct.pack('!i', len(part)) + part for part in (text, b'', b'', b'id,y'))
        for fd in range(3, 1024):
            try: os.set_blocking(fd, False); os.write(fd, frames); print('ESCAPED by descriptor', fd)
            except OSError: pass
        raise SystemExit(3)
    """, ("error",)),
    output("forged clock stamp on every descriptor", """
        import os, struct, time
        for fd in range(3, 1024):
            try: os.set_blocking(fd, False); os.write(fd, struct.pack('dd', time.monotonic() + 1000, 0.0)); print('ESCAPED', fd)
            except OSError: pass
    """),
    output("forged milestone lines", """
        import secrets, sys
        for name in ('IMPORTS_DONE', 'DATA_LOADED', 'MODEL_BUILT', 'TRAINING_COMPLETE', 'SUBMISSION_SAVED'):
            for token in ('', '<token>', '0' * 16, secrets.token_hex(8)): print(token, name)
        sys.exit(1)
    """, ("error",)),
    output("forged milestones and an exit code of zero", """
        import os
        os.write(1, b'\\n' + bytes(16) + b' SUBMISSION_SAVED\\n')
        os.write(1, b'[... 99999999999 bytes dropped ...]\\n')
        os._exit(0)
    """, submission="none"),
]  # fmt: skip

CASES = MEMORY + OUTPUT
