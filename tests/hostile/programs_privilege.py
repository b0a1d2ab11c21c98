"""Programs that ask the kernel for more: limits, priority, clocks, namespaces, mounts, keys, devices, other call tables."""

from case import Case

ROOT_ONLY = ("seccomp|capabilities|user",)
ANYBODY = ("seccomp",)  # the kernel allows it to every user


def ask(name: str, program: str, needs: tuple[str, ...] = ROOT_ONLY, **options) -> Case:
    return Case("privilege", name, "@TOOLS@\n" + program, needs=needs, **options)


def machine_code(name: str, code: str) -> Case:
    """Build a program that runs x86_64 machine code, in hex, and escapes if it returns a positive number."""
    return ask(name, f"""
import mmap
if os.uname().machine == "x86_64":
    area = mmap.mmap(-1, 4096, prot=7)
    area.write(bytes.fromhex("{code}"))
    run = ctypes.CFUNCTYPE(ctypes.c_int32)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    print("ESCAPED" if (result := run()) > 0 else "refused:", result)
""", ANYBODY)  # fmt: skip


LIMITS = [
    ask("limits raised", """
import resource
for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK", "SIGPENDING"):
    kind = getattr(resource, "RLIMIT_" + name, 11)
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        attempt("limit " + name, resource.setrlimit, kind, (hard, hard + 1))
        attempt("limit " + name, resource.setrlimit, kind, (-1, -1))
"""),
    ask("address space raised, then used", """
import resource
try: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); x = bytearray(8 << 30); print("ESCAPED 8 GiB")
except (OSError, ValueError, MemoryError) as error: print("refused:", error)
"""),
    ask("limits raised by prlimit of itself", """
for kind in (9, 0, 1, 6, 7):
    attempt(f"prlimit {kind}", call, "prlimit64", 0, kind, (ctypes.c_uint64 * 2)(2**64 - 1, 2**64 - 1), None)
"""),
    ask("limits of the parent", """
attempt("prlimit of the parent", call, "prlimit64", os.getppid(), 7, (ctypes.c_uint64 * 2)(9, 9), None)
"""),
    ask("nice", 'before = os.nice(0)\nattempt("nice", lambda: 0 if os.nice(-5) < before else -1)'),
    ask("real time", """
attempt("FIFO", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
attempt("sched_setattr", call, "sched_setattr", 0, (ctypes.c_uint32 * 12)(48, 1, 0, 0, 0, 1), 0)
attempt("ioprio of real time", call, "ioprio_set", 1, 0, 1 << 13)
attempt("never out of memory", lambda: open("/proc/self/oom_score_adj", "w").write("-1000"))
"""),
    ask("all processors again", """
import time
os.sched_setaffinity(0, range(os.cpu_count()))
print("processors", os.sched_getaffinity(0))
""", ()),
    ask("the clock", """
import time
attempt("clock_settime", time.clock_settime, time.CLOCK_REALTIME, time.time())
attempt("settimeofday", call, "settimeofday", (ctypes.c_long * 2)(int(now := time.time()), int(now % 1 * 1e6)), None)
attempt("adjtimex", call, "adjtimex", (ctypes.c_long * 26)(0x4000, *[0] * 10, 10000))  # the usual tick
"""),
    ask("the clock by its devices", """
for path in ("/dev/rtc0", "/dev/rtc", "/dev/ptp0", "/dev/hpet"): attempt(path, os.open, path, os.O_RDWR)
"""),
]  # fmt: skip

NAMESPACES = [
    ask("unshare", """
for name, flag in dict(user=1 << 28, mount=1 << 17, net=1 << 30, pid=1 << 29, ipc=1 << 27, uts=1 << 26, cgroup=1 << 25).items():
    attempt("unshare " + name, call, "unshare", flag)
""", ANYBODY),
    ask("unshare of the user, then root in it", """
uid = os.getuid()
if attempt("unshare user and mount", call, "unshare", 1 << 28 | 1 << 17) == 0:
    open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
    attempt("mount", call, "mount", b"none", b".", b"tmpfs", 0, None)
""", ANYBODY),
    ask("clone into namespaces", """
if attempt("clone", call, "clone", 1 << 28 | 1 << 30 | 17, 0, 0, 0, 0) == 0: os._exit(0)
""", ANYBODY),
    ask("setns", """
for name in ("user", "mnt", "net", "pid"):
    for pid in ("@TRAINER@", "1", "self"):
        try: fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        except OSError as error: print("refused:", error); continue
        attempt(f"setns {name} of {pid}", call, "setns", fd, 0)
"""),
    ask("mount", """
os.mkdir("point")
if attempt("tmpfs", call, "mount", b"none", b"point", b"tmpfs", 0, None) == 0: call("umount2", b"point", 2)
if attempt("bind", call, "mount", b"@PUBLIC@", b"point", None, 4096, None) == 0: call("umount2", b"point", 2)
"""),
    ask("new mount calls, chroot and pivot_root", """
attempt("fsopen", call, "fsopen", b"tmpfs", 0)
attempt("open_tree", call, "open_tree", -100, b".", 1)
attempt("chroot", os.chroot, ".")
attempt("pivot_root", call, "pivot_root", b".", b".")
""", ROOT_ONLY),
    ask("the machine's name", """
import socket
attempt("sethostname", call, "sethostname", os.uname().nodename.encode(), len(os.uname().nodename))
"""),
]  # fmt: skip

KERNEL = [
    ask("keys", """
key = attempt("add_key", call, "add_key", b"user", b"nanomle-escaped", b"x", 1, -3)
attempt("keyctl", call, "keyctl", 0, -3, 1)
attempt("request_key", lambda: call("request_key", b"user", b"nanomle-escaped", None, -3))
""", ANYBODY),
    ask("keyrings of the user and the session", """
for ring in (-4, -5): attempt(f"keyring {ring}", call, "keyctl", 0, ring, 1)
attempt("join a session", call, "keyctl", 1, None)
""", ANYBODY),
    ask("bpf, perf_event_open, userfaultfd", """
attempt("bpf", call, "bpf", 0, (ctypes.c_uint32 * 30)(2, 4, 4, 1), 120)
attempt("perf_event_open", call, "perf_event_open", (ctypes.c_uint32 * 32)(1, 128, *[0] * 8, 0x60), 0, -1, -1, 0)
""", ANYBODY),
    ask("userfaultfd", """
for flags in (0, 1): attempt(f"userfaultfd {flags}", call, "userfaultfd", flags)
attempt("by device", os.open, "/dev/userfaultfd", os.O_RDWR)
""", ANYBODY),
    ask("kernel modules, accounting, quotas", """
for name, arguments in (("finit_module", (-1, b"", 0)), ("acct", (None,)), ("quotactl", (0x800002 << 8, b"/dev/x", 0, None))):
    result = call(name, *arguments)
    print("refused:" if result in (-1, -13, -38) else "ESCAPED", name, result)
"""),
    ask("personality", """
for persona in (0x40000, 0x0400000, 0x8):  # no randomised addresses, readable code, 32 bits
    attempt(f"personality {persona:#x}", call, "personality", persona)
""", ANYBODY),
    ask("device nodes", """
for kind, major, minor in ((0o20000, 1, 1), (0o20000, 1, 5), (0o60000, 254, 0), (0o60000, 7, 0)):
    if attempt("mknod", lambda: os.mknod("node", kind | 0o666, os.makedev(major, minor))) is None and os.path.exists("node"):
        os.remove("node")
"""),
    ask("device nodes in raw system calls", """
attempt("mknodat", call, "mknodat", -100, b"node", 0o60666, 254 << 8)
attempt("mknodat", call, "mknodat", -100, b"node2", 0o20666, 1 << 8 | 1)
"""),
    ask("devices that are there", """
for name in ("mem", "port", "kmsg", "fuse", "net/tun", "kvm", "loop-control", "ptmx", "vhost-net", "nvidia0"):
    attempt(name, os.open, "/dev/" + name, os.O_RDWR)
""", ("landlock",)),
    ask("ports", 'attempt("iopl", call, "iopl", 3)\nattempt("ioperm", lambda: libc.ioperm(0x80, 1, 1))'),
    ask("another user", """
for uid in (0, 1, 1000, 60001):
    if uid != os.getuid():
        attempt(f"uid {uid}", os.setuid, uid)
        attempt(f"gid {uid}", os.setgid, uid)
attempt("groups", lambda: (os.setgroups([0, 4, 6]), os.getgroups())[1])
"""),
    ask("capabilities back", """
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
call("capget", header, data := (ctypes.c_uint32 * 6)())
print("held", list(data))
wanted = (ctypes.c_uint32 * 6)(data[1] | 1 << 21, data[1] | 1 << 21, data[2], data[4], data[4], data[5])
if not data[0] >> 21 & 1: attempt("CAP_SYS_ADMIN", call, "capset", header, wanted)
else: print("ESCAPED: never lost CAP_SYS_ADMIN")
""", ("capabilities|user",)),
    ask("owner and file capabilities", """
open("mine", "w").write("x")
attempt("chown", os.chown, "mine", 0 if os.getuid() else 1, -1)
rights = bytes.fromhex("0100000200002000000000000000000000000000")
attempt("file capabilities", os.setxattr, "mine", "security.capability", rights)
try: os.chmod("mine", 0o6755)
except OSError as error: print("refused:", error)
"""),
    ask("no_new_privs and seccomp undone", """
libc.prctl(38, 0, 0, 0, 0)
if libc.prctl(39, 0, 0, 0, 0) != 1: print("ESCAPED: privileges may be gained")
""", ANYBODY),
    machine_code("the 32-bit call table", "b814000000cd80c3"),  # mov eax, 20 (getpid); int 0x80; ret
    machine_code("the 32-bit call table, socket", "53b867010000bb02000000b90100000031d2cd805bc3"),
    machine_code("the x32 call table", "b8270000400f05c3"),  # mov eax, 0x40000000 + 39 (getpid); syscall; ret
    machine_code("the x32 call table, socket", "b829000040bf02000000be0100000031d20f05c3"),
]  # fmt: skip

CASES = LIMITS + NAMESPACES + KERNEL
