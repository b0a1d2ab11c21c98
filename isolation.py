"""The kernel's protection layers for one process: who it is, which system calls and files it may use, which network.

Each layer is tried at start in a throwaway child that then does what the layer forbids; status() reports what happened.

    limits        rlimits: address space, CPU time, file size, open files, threads, queued signals
    capabilities  all dropped
    user          as root: an own user id per run, where that user can still read the libraries
    network       once, for all runs: a network and IPC namespace with no interface
    landlock      files: reads the libraries and the data, writes the work directory, sees nothing else (Linux 5.13)
    seccomp       system calls: no processes, sockets, signals to others, shared memory, kernel doors   (Linux 3.17)

Covered by these together: labels and any other file, other processes and their memory, the network, persistent changes
outside the work directory, privileges, and the kernel interfaces that have had the most faults.
Not covered: existence and size of paths by stat(); flock() on the data; covert channels through CPU and caches; faults
of the kernel itself; what runs inside the program's own process; GPUs, which programs do not get.

Standard library and ctypes only: no setuid helper, no daemon, no cgroup. System calls are named by machine number for
x86_64 and aarch64; on another machine the seccomp layer is reported as missing.
"""

import contextlib
import errno
import importlib
import json
import math
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from seccomp import LINUX, MACHINES, filter_calls, libc_call, prctl, system_call

MIB, GIB = 2**20, 2**30
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
FIRST_UID, UIDS = 60_000, 5_000  # below nobody (65534), above the users that systems create
MAX_THREADS = 256  # of one program

# Landlock: rights on files as bits, https://docs.kernel.org/userspace-api/landlock.html

READ_FILE, WRITE_FILE, READ_DIR, TRUNCATE = (1 << bit for bit in (2, 1, 3, 14))
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, REFER = (1 << bit for bit in (4, 5, 7, 8, 13))
READ, WRITE = READ_FILE | READ_DIR, WRITE_FILE | TRUNCATE
OWN_DIRECTORY = READ | WRITE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER  # no links, FIFOs, sockets, devices
SYSTEM_PATHS = """/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /etc/ld.so.cache /etc/localtime /etc/timezone
    /etc/ssl/openssl.cnf /etc/ssl/certs /etc/fonts /usr/share/fonts /usr/share/zoneinfo /proc/cpuinfo /proc/meminfo
    /sys/devices/system/cpu /dev/urandom /dev/random /dev/zero"""


def landlock_abi() -> int:
    """Return the kernel's version of the interface, 0 for none. NANOMLE_LANDLOCK_ABI lowers it, to test older kernels."""
    try:
        abi = system_call(444, None, 0, 1)
    except OSError:
        return 0
    return min(abi, int(os.environ.pop("NANOMLE_LANDLOCK_ABI", abi)))


def library_paths() -> list[str]:
    """Return what programs may read of the system: the interpreter's libraries, nothing of this project."""
    ours = os.path.dirname(os.path.abspath(__file__))
    library = os.path.join(sys.base_prefix, "lib")
    python = [library, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))]
    paths = [*SYSTEM_PATHS.split(), *python, *sys.path]
    return sorted({os.path.realpath(path) for path in paths if path and os.path.exists(path)} - {ours})


def add_rule(ruleset: int, path: str | int, rights: int) -> None:
    """Grant rights beneath a directory, or on a file, to which those on directories do not apply; fd or path."""
    if isinstance(path, str):
        fd = os.open(path, os.O_PATH)
        add_rule(ruleset, fd, rights)
        return os.close(fd)
    if not stat.S_ISDIR(os.fstat(path).st_mode):
        rights &= READ_FILE | WRITE
    system_call(445, ruleset, 1, struct.pack("=QI", rights, path), 0)


def create_ruleset(abi: int) -> int:
    """Return a ruleset that handles, so forbids, all that this version knows: files; TCP (4); signals, sockets (6)."""
    return system_call(444, struct.pack("QQQ", rights_of(abi), 3, 3), 8 if abi < 4 else 16 if abi < 6 else 24, 0)


def rights_of(abi: int) -> int:
    return (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1


# user, capabilities, network, limits


def drop_capabilities() -> None:
    """Empty the capability sets of this process, also those that a user namespace gave."""
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)  # version 3, this process; two times three sets
    libc_call("capset", header, nothing)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def enter_empty_network() -> None:
    """Move this process into a network and IPC namespace of its own; without root, in a user namespace."""
    uid, gid = os.getuid(), os.getgid()
    new_user, new_ipc, new_network = 0x10000000, 0x08000000, 0x40000000
    libc_call("unshare", new_network | new_ipc | (new_user if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit of this process; where the one we inherited is lower, keep it."""
    ceiling = resource.getrlimit(kind)[1]
    wanted = (soft, soft if hard is None else hard)
    resource.setrlimit(kind, wanted if ceiling == resource.RLIM_INFINITY else tuple(min(ceiling, x) for x in wanted))


def set_limits(time_limit_s: float, memory_gib: float, file_mib: float, user_threads: int) -> None:
    """Limit this process. user_threads: how many its user runs already, since the kernel counts them together."""
    cpu_s = math.ceil(time_limit_s) * count_cores() + 1  # threads may use every core until the deadline
    set_limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 2)
    set_limit(resource.RLIMIT_FSIZE, int(file_mib * MIB))
    set_limit(resource.RLIMIT_NOFILE, 256)
    set_limit(resource.RLIMIT_CORE, 0)
    if LINUX:
        warm_pages = int(Path("/proc/self/statm").read_text().split()[0])
        set_limit(resource.RLIMIT_AS, warm_pages * resource.getpagesize() + int(memory_gib * GIB))
        set_limit(resource.RLIMIT_NPROC, user_threads + MAX_THREADS)
        set_limit(resource.RLIMIT_SIGPENDING, 64)
        set_limit(resource.RLIMIT_MEMLOCK, 0)


# all of it: tried at start, applied to each program


def work_path(root: str, monitor: int) -> str:
    """Return the directory of the run that a monitor supervises."""
    return os.path.join(root, f"run-{monitor}")


class Layer(NamedTuple):
    """One layer on this machine, and what a throwaway child saw when it did what the layer forbids."""

    name: str
    active: bool
    evidence: str


class Isolation:
    """The layers that work here. The zygote makes one, and calls enter_network() before anything starts a thread."""

    def __init__(self, root: str):
        self.root, self.layers = root, []
        self.without = os.environ.pop("NANOMLE_SANDBOX_WITHOUT", "").split(",")  # to test what a lesser machine gives
        self.abi = landlock_abi() if LINUX and "landlock" not in self.without else 0
        self.readable = [os.open(path, os.O_PATH) for path in library_paths()] if self.abi else []
        self.canary = os.path.join(root, "canary")
        Path(self.canary).touch(0o600)

    def choose_uid(self) -> int | None:
        """Return the user id for the program of this process, None where it cannot change."""
        return FIRST_UID + os.getpid() % UIDS if self.has("user") else None

    def has(self, name: str) -> bool:
        return any(layer.active for layer in self.layers if layer.name == name)

    def enter_network(self) -> None:
        if self.attempt("network", self.try_network):
            enter_empty_network()

    def probe(self) -> None:
        """Try the other layers, each alone, then all of them on a process that must still be able to work."""
        self.attempt("limits", self.try_limits)
        self.attempt("capabilities", self.try_capabilities)
        if self.attempt("user", self.try_user):
            os.chmod(self.root, 0o711)  # programs pass through it to their own directories
        if not self.attempt("landlock", self.try_landlock):
            self.abi = 0
        self.attempt("seccomp", self.try_seccomp)
        self.attempt("together", self.try_together)

    def attempt(self, name: str, action) -> bool:
        """Run the action in a throwaway child; record what it saw, or how it failed."""
        if name in self.without or not LINUX:
            self.layers.append(Layer(name, False, "switched off by NANOMLE_SANDBOX_WITHOUT" if LINUX else "Linux only"))
            return False
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                seen = (True, action())
            except BaseException as error:
                seen = (False, str(error) or type(error).__name__)
            os.write(writing, json.dumps(seen).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as answer:
            active, evidence = json.loads(answer.read() or b'[false, "the child died"]')
        os.waitpid(pid, 0)
        self.layers.append(Layer(name, active, evidence))
        return active

    def try_network(self) -> str:
        enter_empty_network()
        return "connect(): " + refusal(lambda: socket.create_connection(("127.0.0.1", 9), 1), errno.ENETUNREACH)

    def try_limits(self) -> str:
        set_limits(1, 0.0625, 1, 0)
        return "a map of 1 GiB: " + refusal(lambda: mmap.mmap(-1, GIB), errno.ENOMEM)

    def try_capabilities(self) -> str:
        drop_capabilities()
        return "chroot(): " + refusal(lambda: os.chroot("/"), errno.EPERM)

    def try_user(self) -> str:
        if os.getuid():
            raise RuntimeError(f"not root: programs run as user {os.getuid()}, like the trainer")
        self.make_directory(FIRST_UID)
        become(FIRST_UID)
        try:
            open(sys.modules["numpy"].__file__).close()
            importlib.import_module("colorsys")
        except (OSError, ImportError):
            raise RuntimeError(f"another user cannot read {sys.prefix}: programs run as root without capabilities") from None
        return "opening a file of root: " + refusal(lambda: open(self.canary), errno.EACCES)

    def try_landlock(self) -> str:
        if not self.abi:
            raise RuntimeError("the kernel has none: it needs Linux 5.13 and `landlock` in /sys/kernel/security/lsm")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        system_call(446, self.open_ruleset(self.make_directory(None), []), 0)
        return f"ABI {self.abi}; opening a file outside: " + refusal(lambda: open(self.canary), errno.EACCES)

    def try_seccomp(self) -> str:
        if platform.machine() not in MACHINES:
            raise RuntimeError(f"no table of system calls for {platform.machine()}")
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        filter_calls(os.getpid())
        calls = {"fork": os.fork, "kill": lambda: os.kill(os.getppid(), 0)}
        seen = [f"{name}(): {refusal(call, errno.EPERM)}" for name, call in calls.items()]
        return ", ".join([*seen, "socket(): " + refusal(socket.socket, errno.EACCES)])

    def try_together(self) -> str:
        uid = self.choose_uid()
        os.chdir(self.make_directory(uid))
        self.apply(uid, os.getppid(), self.open_ruleset(os.getcwd(), []))
        importlib.import_module("colorsys")
        Path("file").write_text("")
        return "importing a library and writing a file work"

    def make_directory(self, uid: int | None) -> str:
        """Make the work directory of a run, named after this process, and give it to the program's user."""
        work = work_path(self.root, os.getpid())
        os.mkdir(work, 0o700)
        if uid is not None:
            os.chown(work, uid, uid)
        return work

    def open_ruleset(self, work: str, data: list[str]) -> int:
        """Return the Landlock ruleset of a program, -1 without Landlock."""
        if not self.abi:
            return -1
        ruleset, all_rights = create_ruleset(self.abi), rights_of(self.abi)
        for path in (*self.readable, "/proc/self", *data):
            add_rule(ruleset, path, READ)
        add_rule(ruleset, os.devnull, (READ | WRITE) & all_rights)
        add_rule(ruleset, work, OWN_DIRECTORY & all_rights)
        return ruleset

    def apply(self, uid: int | None, monitor: int, ruleset: int) -> None:
        """Take from this process all that a program must not have. For good; the last step before its code."""
        if not LINUX:
            return
        if uid is not None:
            become(uid)
        elif os.getuid() == 0:  # RLIMIT_NPROC does not bind root; it goes by the real id, access by the effective one
            with contextlib.suppress(PermissionError):
                os.setresuid(FIRST_UID + os.getpid() % UIDS, 0, 0)
        drop_capabilities()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user forgets it
        if os.getppid() != monitor:  # it died before that
            os._exit(1)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        if ruleset >= 0:
            system_call(446, ruleset, 0)
            os.close(ruleset)
        if self.has("seccomp"):
            filter_calls(os.getpid())


def refusal(action, expected: int) -> str:
    """Return the name of the error that the action fails with. Raises where it works, or fails otherwise."""
    try:
        action()
    except OSError as error:
        if error.errno == expected:
            return errno.errorcode[expected]
        raise
    raise RuntimeError("what must be refused went through")
