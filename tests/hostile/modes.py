"""What makes this process like one on another machine: namespaces, a readable interpreter, another user, Docker's walls.

By ctypes, because os.unshare needs Python 3.12, and util-linux may be absent. All of it is for throwaway children.
"""

import ctypes
import fcntl
import os
import platform
import signal
import socket
import stat
import struct
import sys
import tempfile
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_DUMPABLE = 24, 22, 4
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
# audit_write, setfcap
DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)

# What Docker's default profile refuses without CAP_SYS_ADMIN and its like (moby, profiles/seccomp/default.json); ptrace and
# process_vm_* it allows since Linux 4.8. No more is refused than there, or the mode would flatter the sandbox:
# name -> number on x86_64, on aarch64
DENIED = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "quotactl": (179, 60),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "syslog": (103, 116), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "nfsservctl": (180, 42), "sethostname": (170, 161),
    "setdomainname": (171, 162), "vhangup": (153, 58), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18),
    "move_pages": (279, 239), "mbind": (237, 235), "set_mempolicy": (238, 237), "iopl": (172, -1), "ioperm": (173, -1),
}  # fmt: skip
CLONE, CLONE3, PERSONALITY = {"x86_64": (56, 435, 135), "aarch64": (220, 435, 92)}.get(platform.machine(), (-1, -1, -1))
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)  # Linux, 32 bits, with the old uname, and the question


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    encoded = (text and text.encode() for text in (source, target, kind))
    check(libc.mount(*encoded, ctypes.c_ulong(flags), options and options.encode()), f"mount {source} on {target}")


# namespaces


def enter_namespaces() -> None:
    """Move this process's children into own pid, mount, IPC and network namespaces; with a user namespace if not root."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(NEWPID | NEWNS | NEWIPC | NEWNET | (NEWUSER if uid else 0)), "unshare")
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    raise_loopback()


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = struct.unpack("16xh6x", fcntl.ioctl(sock, 0x8913, struct.pack("16sh6x", b"lo", 0)))[0]
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh6x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP


def run_as_init(function) -> int:
    """Run function in a grandchild, beneath a first process of the pid namespace that reaps; return its exit code.

    The first process of a namespace gets no signal from within, so it outlives kill(-1); its end ends all others.
    """
    if (first := os.fork()) == 0:
        code = 1
        default_signals()  # a handler would let them in; Python has one for SIGINT
        try:
            mount("proc", "/proc", "proc")
            if (main := os.fork()) == 0:
                function()
                os._exit(0)
            while (ended := os.wait())[0] != main:
                pass
            code = os.waitstatus_to_exitcode(ended[1])
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(code if code >= 0 else 128 - code)
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def probe(function) -> str:
    """Return why function fails in a throwaway child; "" if it works."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            function()
        except BaseException as error:
            os.write(writing, str(error).encode()[:500] or b"failed")
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, "rb") as file:
        return file.read().decode(errors="replace")


def probe_namespaces() -> None:
    enter_namespaces()
    if run_as_init(lambda: None):
        raise OSError("no /proc in a pid namespace")


# an interpreter that everybody may read


def closed_parent(path: Path) -> Path | None:
    """Return the topmost directory above path that other users cannot enter."""
    above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    return above[0] if above else None


def interpreter_paths() -> list[Path]:
    """Return the directories that the interpreter, its libraries and this project lie in."""
    project = Path(__file__).resolve().parents[2]
    return [Path(path).resolve() for path in dict.fromkeys((sys.base_prefix, sys.prefix, str(project)))]


def is_open() -> bool:
    return all(closed_parent(path) is None for path in interpreter_paths())


def open_interpreter() -> None:
    """Make the interpreter's closed parents, in this mount namespace, directories that hold nothing but its paths."""
    closed = {path: parent for path in interpreter_paths() if (parent := closed_parent(path))}
    aside = {path: tempfile.mkdtemp(prefix="hostile-bind-") for path in closed}
    for path, place in aside.items():
        mount(str(path), place, None, MS_BIND | MS_REC)
    for parent in dict.fromkeys(closed.values()):
        mount("none", str(parent), "tmpfs", 0, "mode=755")
    for path, place in aside.items():
        path.mkdir(parents=True, exist_ok=True)
        mount(place, str(path), None, MS_BIND | MS_REC)
        check(libc.umount2(place.encode(), MNT_DETACH), "umount")
        os.rmdir(place)


# another user, Docker's walls


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE")  # else /proc/self belongs to root


def drop_to_docker() -> None:
    """Keep of root what a container has: 14 capabilities, and the system calls of the default profile."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in set(range(last + 1)) - set(DOCKER_CAPABILITIES):
        check(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), f"capability {capability}")
    install_docker_filter()
    kept = sum(1 << capability for capability in DOCKER_CAPABILITIES)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)
    check(libc.capset(header, data), "capset")


def docker_program() -> list[tuple[int, int, int, int]]:
    """Return the BPF instructions: EPERM for the denied calls, ENOSYS for clone3, the rest and other tables are allowed."""
    load, jump_eq, jump_set, answer = 0x20, 0x15, 0x45, 0x06
    allow, refuse, absent = ((answer, 0, 0, value) for value in (0x7FFF0000, 0x50001, 0x50026))
    column = platform.machine() == "aarch64"
    program = [(load, 0, 0, 4), (jump_eq, 1, 0, AUDIT_ARCH[platform.machine()]), allow, (load, 0, 0, 0)]
    for pair in DENIED.values():
        program += [(jump_eq, 0, 1, pair[column]), refuse] if pair[column] >= 0 else []
    program += [(jump_eq, 0, 1, CLONE3), absent]
    program += [(jump_eq, 0, 4, CLONE), (load, 0, 0, 16), (jump_set, 0, 1, 0x7E020000), refuse, allow]  # any CLONE_NEW*
    program += [(jump_eq, 0, len(PERSONALITIES) + 3, PERSONALITY), (load, 0, 0, 16)]
    for index, value in enumerate(PERSONALITIES):
        program.append((jump_eq, len(PERSONALITIES) - index, 0, value))
    return [*program, refuse, allow, allow]


def install_docker_filter() -> None:
    program = docker_program()
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(header, len(header)), 0, 0), "seccomp")


def default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
