"""The work directory of a run: the data in it, its size, the submission, its removal. All from outside the program.

The program owns the directory and may change it at any moment, so everything goes by descriptors and follows no link.
"""

import contextlib
import errno
import glob
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from isolation import MIB, Isolation

COPIED_MIB = 4  # a larger file of the data is linked
DISK_ENTRIES, DISK_DEPTH = 5_000, 32  # more files end the program (unless the data are as many); looks no deeper


def read_submission(directory: int, limit: float) -> tuple[bytes, str]:
    """Return submission.csv, or b"" and the reason. Only a plain file counts; no link is followed, no FIFO awaited."""
    try:
        fd = os.open("submission.csv", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        known = {errno.ENOENT: "no submission.csv", errno.ELOOP: "a symbolic link"}
        return b"", known.get(error.errno, f"cannot be opened: {error.strerror}")
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        return b"", "not a regular file"
    if about.st_nlink != 1:
        return b"", "a hard link"
    if about.st_size > limit:
        return b"", f"larger than {limit / MIB:g} MiB"
    with open(fd, "rb") as file:
        return file.read(int(limit)), ""


def disk_use(directory: int) -> float:
    """Return the bytes that a directory's files occupy; infinity if they are more than DISK_ENTRIES."""
    total, count, folders = 0, 0, ["."]
    while folders:
        for path, about in stat_entries(directory, folders.pop()):
            total += about.st_blocks * 512
            count += 1
            if count > DISK_ENTRIES:
                return math.inf
            if stat.S_ISDIR(about.st_mode) and path.count("/") < DISK_DEPTH:
                folders.append(path)
    return total


def stat_entries(directory: int, folder: str):
    """Yield (path, stat) of a folder's entries. The program may change them meanwhile: what vanishes is left out."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except OSError:
        return
    try:
        for entry in os.scandir(fd):
            with contextlib.suppress(OSError):
                yield f"{folder}/{entry.name}", entry.stat(follow_symlinks=False)
    finally:
        os.close(fd)


def deleted_use(pid: int) -> int:
    """Return the bytes of deleted files that a process holds open; 0 where the kernel does not let us see."""
    total = 0
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(OSError):
            about = os.stat(fd)
            total += about.st_blocks * 512 if stat.S_ISREG(about.st_mode) and not about.st_nlink else 0
    return total


def place_data(public_dir: str | None, work: str, isolation: Isolation) -> list[str]:
    """Put the public files into the work directory; return the paths that the program needs to read besides.

    Small files are copied, read-only. Folders and large files become links, for gigabytes are not to be copied for each run;
    but only where Landlock keeps the targets from being written, else the next run would see what this one did to them.
    """
    if public_dir is None:
        return []
    sources = list_data(public_dir)
    may_link = isolation.has("landlock") and not (isolation.has("user") and find_closed(sources.values()))
    linked = []
    for name, source in sources.items():
        target = os.path.join(work, name)
        if may_link and (os.path.isdir(source) or os.path.getsize(source) > COPIED_MIB * MIB):
            os.symlink(source, target)
            linked.append(source)
        else:
            copy_read_only(source, target)
    return [*linked, *nested_targets(linked)]


def list_data(public_dir: str) -> dict[str, str]:
    """Return the public files and folders by name, links resolved; none that leads nowhere or is the program's to write."""
    paths = {name: os.path.join(public_dir, name) for name in os.listdir(public_dir)}
    own = ("submission.csv", "solution.py")
    return {name: os.path.realpath(path) for name, path in paths.items() if name not in own and os.path.exists(path)}


def find_closed_link(public_dir: str) -> str:
    """Return what place_data would link in vain: a file or folder that keeps another user from a link's target, or ""."""
    sources = list_data(public_dir).values()
    return "" if find_closed(sources) else find_closed(nested_targets(sources))  # closed sources are copied, links followed


def nested_targets(sources: Iterable[str]) -> list[str]:
    """Return what links inside the data point to, as images of real data do: the files alone, not what lies beside them."""
    inside = (os.path.join(folder, name) for source in sources for folder, _, names in os.walk(source) for name in names)
    return [target for path in inside if os.path.islink(path) and os.path.exists(target := os.path.realpath(path))]


def find_closed(paths: Iterable[str]) -> str:
    """Return the first path that not every user can read, or its folder that not every user can enter; "" if there is none.

    What is in a directory is taken to be like it.
    """
    known = set()
    for path in paths:
        if not os.stat(path).st_mode & stat.S_IROTH:
            return path
        folders = {path, *map(str, Path(path).parents)} if os.path.isdir(path) else set(map(str, Path(path).parents))
        for folder in sorted(folders - known):  # the outermost first
            if not os.stat(folder).st_mode & stat.S_IXOTH:
                return folder
        known |= folders
    return ""


def copy_read_only(source: str, target: str) -> None:
    if not os.path.isdir(source):
        shutil.copyfile(source, target)
        return os.chmod(target, 0o444)
    shutil.copytree(source, target, copy_function=copy_read_only)
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o555)


def remove_tree(path: str, give_up_at: float = math.inf) -> None:
    """Remove a directory of any depth, following no link: what is inside moves up to the top, so nothing is deep.

    Raises TimeoutError at give_up_at (monotonic clock); another call goes on. Some file systems take milliseconds a directory.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        top = os.open(path, flags)
    except FileNotFoundError:
        return
    try:
        folders = flatten(top, top, give_up_at)
        while folders:
            name = folders.pop()
            folder = os.open(name, flags, dir_fd=top)
            try:
                folders += flatten(folder, top, give_up_at)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def flatten(folder: int, top: int, give_up_at: float) -> list[str]:
    """Unlink the files and empty directories of a folder, move the others into top under new names, and return these."""
    moved = []
    for name in os.listdir(folder):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{name} and more could not be removed in time")
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError:
            os.chmod(name, 0o700, dir_fd=folder)
            moved.append(secrets.token_hex(16))
            os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved
