"""Programs that trace, read or change other processes: the trainer, its other programs, the monitor."""

from case import Case

TRACED = ("seccomp|user|landlock",)  # calls that the kernel guards by ptrace's rules
READ = ("landlock|user",)  # files of /proc under the same rules
NOT_US = "@VICTIM@, os.getppid()"  # what succeeds would hurt the suite


def other(name: str, program: str, needs: tuple[str, ...], **options) -> Case:
    return Case("other-processes", name, "@TOOLS@\n" + program, needs=needs, **options)


def of_each(name: str, program: str, needs: tuple[str, ...] = READ, pids="@VICTIM@, @TRAINER@, os.getppid()") -> Case:
    """Build a program whose body runs for the victim, the trainer and the parent, as `pid`."""
    body = "".join(f"    {line}\n" for line in program.strip().splitlines())
    return other(name, f"for pid in ({pids}):\n{body}", needs)


CASES = [
    of_each("ptrace attach and detach", """
if attempt("ptrace", call, "ptrace", 16, pid, 0, 0) == 0:
    import time; time.sleep(0.05); call("ptrace", 17, pid, 0, 0)
""", TRACED),
    of_each("ptrace seize", 'attempt("ptrace", call, "ptrace", 0x4206, pid, 0, 0)', TRACED),
    other("ptrace by the parent's leave", 'attempt("traceme", call, "ptrace", 0, 0, 0, 0)', ("seccomp",)),
    of_each("process_vm_readv", """
mine = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 8)
theirs = (ctypes.c_size_t * 2)(8, 8)  # nothing is there: EFAULT if it may be read
result = call("process_vm_readv", pid, mine, 1, theirs, 1, 0)
print("refused: " if result in (-1, -13, -3, -38) else "ESCAPED process_vm_readv", result)
""", TRACED),
    of_each("process_vm_writev", """
mine = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 8)
theirs = (ctypes.c_size_t * 2)(8, 8)
result = call("process_vm_writev", pid, mine, 1, theirs, 1, 0)
print("refused: " if result in (-1, -13, -3, -38) else "ESCAPED process_vm_writev", result)
""", TRACED),
    of_each("memory by /proc", """
import re
try:
    maps = [line.split() for line in open(f"/proc/{pid}/maps")]
    memory = open(f"/proc/{pid}/mem", "rb", 0)
    print("ESCAPED: opened the memory of", pid)
    for span, rights, *_ in maps:
        if rights.startswith("rw"):
            start, end = (int(x, 16) for x in span.split("-"))
            if end - start < 1 << 26:
                memory.seek(start)
                print(set(re.findall(rb"canary-[0-9a-f]{32}", memory.read(end - start))))
except (OSError, ValueError, OverflowError) as error: print("refused:", error)
"""),
    of_each("memory by /proc, for writing", 'attempt("memory", open, f"/proc/{pid}/mem", "r+b", 0)'),
    of_each("memory by /proc's tasks", 'attempt("memory", open, f"/proc/{pid}/task/{pid}/mem", "rb", 0)'),
    of_each("environment by /proc", """
try: print("ESCAPED" if (data := open(f"/proc/{pid}/environ", "rb").read()) else "empty", data)
except OSError as error: print("refused:", error)
"""),
    other("environment of every process", """
import glob
for path in glob.glob("/proc/[0-9]*/environ") + ["/proc/1/environ", f"/proc/{os.getppid()}/environ"]:
    if path != f"/proc/{os.getpid()}/environ":
        try: print("ESCAPED" if (data := open(path, "rb").read()) else "empty", path, data)
        except OSError as error: print("refused:", error)
""", READ),
    other("command lines of other processes", """
for pid in (@VICTIM@, @TRAINER@, os.getppid()):
    try: print("ESCAPED", open(f"/proc/{pid}/cmdline").read())
    except OSError as error: print("refused:", error)
""", ("landlock",)),
    of_each("descriptors by /proc", """
try:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try: print("ESCAPED by descriptor", fd, open(f"/proc/{pid}/fd/{fd}", "rb", 0).read(0))
        except OSError as error: print("refused:", error)
except OSError as error: print("refused:", error)
"""),
    of_each("file descriptors' targets by /proc", """
try: print("ESCAPED", [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")])
except OSError as error: print("refused:", error)
"""),
    of_each("root by /proc", 'attempt("root", os.listdir, f"/proc/{pid}/root/")'),
    of_each("a file behind the root of /proc", 'attempt("read", lambda: print(open(f"/proc/{pid}/root@CANARY@").read()))'),
    of_each("working directory by /proc", 'attempt("cwd", os.listdir, f"/proc/{pid}/cwd/")'),
    of_each("pidfd_getfd", """
if (fd := call("pidfd_open", pid, 0)) >= 0:
    for number in range(8): attempt(f"fd {number}", call, "pidfd_getfd", fd, number, 0)
""", TRACED),
    of_each("kcmp and process_madvise", """
attempt("kcmp", call, "kcmp", pid, os.getpid(), 2, 0, 0)
if (fd := call("pidfd_open", pid, 0)) >= 0: attempt("madvise", call, "process_madvise", fd, None, 0, 20, 0)
""", ("seccomp",)),
    of_each("move_pages", 'attempt("move_pages", call, "move_pages", pid, 0, None, None, None, 0)', ("seccomp|user",)),
    of_each("limits", """
new = (ctypes.c_uint64 * 2)(64, 64)
attempt("prlimit64", call, "prlimit64", pid, 7, new, None)
""", ("seccomp|user",), NOT_US),
    of_each("priority", """
attempt("setpriority", call, "setpriority", 0, pid, 19)
attempt("setpriority of the group", call, "setpriority", 1, os.getpgid(pid), 19)
""", ("seccomp|user",), NOT_US),
    other("priority of everybody of the user", """
call("setpriority", 2, os.getuid(), 19)
call("ioprio_set", 3, os.getuid(), 3 << 13)
""", ("seccomp|user",), drastic=True),
    of_each("processor affinity", """
try: os.sched_setaffinity(pid, {0}); print("changed, or it says so")
except OSError as error: print("refused:", error)
""", ("seccomp|user",), NOT_US),
    of_each("scheduler", """
attempt("batch", os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
attempt("ioprio", call, "ioprio_set", 1, pid, 3 << 13)
""", ("seccomp|user",), NOT_US),
    of_each("out-of-memory score, seccomp and uid maps by /proc", """
for name in ("oom_score_adj", "uid_map", "coredump_filter", "timerslack_ns", "clear_refs", "comm"):
    attempt(name, open, f"/proc/{pid}/{name}", "r+")
"""),
    of_each("stack, system call and wait channel by /proc", """
for name in ("syscall", "stack", "auxv", "io", "smaps", "personality"):
    attempt(name, lambda: open(f"/proc/{pid}/{name}", "rb").read()[0])
"""),
    other("terminal input", """
import fcntl
for fd in (0, 1, 2):
    attempt("TIOCSTI", fcntl.ioctl, fd, 0x5412, b"x")
    attempt("TIOCLINUX", fcntl.ioctl, fd, 0x541C, bytes(16))
try: attempt("TIOCSTI", fcntl.ioctl, os.open("/dev/tty", os.O_RDWR), 0x5412, b"x")
except OSError as error: print("refused:", error)
""", ("seccomp",)),
    other("terminal input of its own terminal", """
import fcntl, pty
try: master, slave = pty.openpty()
except OSError as error: print("refused:", error)
else:
    fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
    attempt("TIOCSTI", fcntl.ioctl, slave, 0x5412, b"x")
    attempt("TIOCSTI with high bits", call, "ioctl", slave, 0x100005412, b"x")
""", ("seccomp|landlock",)),
]  # fmt: skip
