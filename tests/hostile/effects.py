"""How the harness sees effects: the state of files, of processes in /proc, and of its listeners."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import struct
from pathlib import Path


def build_listeners(folder: Path) -> dict[str, socket.socket]:
    """Return listening sockets, by path in a directory that everybody may enter, which nobody serves but count_arrivals."""
    abstract = "\0hostile-" + secrets.token_hex(8)
    addresses = {
        "TCP": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        "UDP": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream")),
        "unix datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram")),
        "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, abstract),
        "abstract datagram": (socket.AF_UNIX, socket.SOCK_DGRAM, abstract + "-datagram"),
    }
    listeners = {}
    for name, (family, kind, address) in addresses.items():
        listeners[name] = listener = socket.socket(family, kind)
        listener.bind(address)
        listener.setblocking(False)
        if kind == socket.SOCK_STREAM:
            listener.listen(64)
        if isinstance(address, str) and address[0] == "/":
            os.chmod(address, 0o777)
    return listeners


def count_arrivals(listeners: dict[str, socket.socket]) -> dict[str, int]:
    """Return how many connections or datagrams came since the last call."""
    counts = dict.fromkeys(listeners, 0)
    for name, listener in listeners.items():
        with contextlib.suppress(BlockingIOError):
            while True:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()[0].close()
                else:
                    listener.recv(1)
                counts[name] += 1
    return counts


def snapshot(folder: Path) -> dict[str, tuple]:
    """Return kind, rights, owner, time, attributes and content of everything in a folder, itself included."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        with contextlib.suppress(OSError):  # a program that lives on may remove it meanwhile
            about, content = path.lstat(), []
            if stat.S_ISREG(about.st_mode):
                content = [*sorted(os.listxattr(path)), hashlib.sha256(path.read_bytes()).hexdigest()]
            found[str(path)] = (oct(about.st_mode), about.st_uid, about.st_gid, about.st_mtime_ns, *content)
    return found


def compare(what: str, before: dict | None, after: dict | None) -> list[str]:
    """Return a line for each key whose value differs."""
    before, after = before or {}, after or {}
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [f"{what}: {key} was {before.get(key)}, is {after.get(key)}"[:300] for key in changed[:4]]


def process_state(pid: int) -> dict | None:
    """Return what others can change about a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        state = {
            "state": "running" if fields[0] in "RSD" else fields[0],
            "session": fields[3],
            "nice": os.getpriority(os.PRIO_PROCESS, pid),
            "affinity": sorted(os.sched_getaffinity(pid)),
            "scheduler": os.sched_getscheduler(pid),
            "limits": Path(f"/proc/{pid}/limits").read_text(),
            "oom score": Path(f"/proc/{pid}/oom_score_adj").read_text(),
            "tracer": next(line for line in status.splitlines() if line.startswith("TracerPid")),
        }
    except (OSError, IndexError):
        return None
    return state


def parents() -> dict[int, int]:
    """Return the parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def all_processes() -> set[int]:
    return set(parents())


def children(pid: int) -> set[int]:
    return {child for child, parent in parents().items() if parent == pid}


def descendants(pid: int) -> set[int]:
    """Return children, their children, and so on."""
    tree, found, fresh = parents(), set(), {pid}
    while fresh:
        fresh = {child for child, parent in tree.items() if parent in fresh} - found
        found |= fresh
    return found


def describe(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
    except OSError:
        return "gone"


def unlock(path: str) -> None:
    """Take the immutable and append-only flags from a directory and what is in it, as far as we may."""
    for name in (path, *(str(inner) for inner in Path(path).rglob("*"))):
        with contextlib.suppress(OSError):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0))  # FS_IOC_SETFLAGS
            os.close(fd)
