"""Programs that write where they must not: outside, the data, the libraries; and programs that fill the disk."""

from case import Case

OWNED = ("landlock|user",)  # the trainer's user may write there
SHARED = ("landlock",)  # everybody may write there
FULL = ("output_limit", "error")


def write(name: str, program: str, needs: tuple[str, ...] = OWNED, **options) -> Case:
    return Case("writing", name, "@TOOLS@\n" + program, needs=needs, **options)


def created(name: str, folder: str, needs: tuple[str, ...]) -> Case:
    """Build a program that creates a file in a folder, an expression, and removes it."""
    return write(name, f"""
path = os.path.join({folder}, "nanomle-escaped")
if attempt("file in " + path, lambda: open(path, "w").write("x")): os.remove(path)
""", needs)  # fmt: skip


OUTSIDE = [
    write("create outside", 'attempt("create", lambda: open("@OUTSIDE@/new", "w").write("x"))'),
    write("append outside", 'attempt("append", lambda: open("@OUTSIDE@/kept", "a").write("x"))'),
    write("create in a directory of everybody", 'attempt("create", lambda: open("@SHARED@/new", "w").write("x"))', SHARED),
    write("create outside by a relative path", """
attempt("create", lambda: open(os.path.relpath("@OUTSIDE@/new"), "w").write("x"))
attempt("create", lambda: open("sub/../" + os.path.relpath("@OUTSIDE@/new2"), "w").write("x"))
"""),
    write("move and link outside", """
open("mine", "w").write("x")
attempt("link", os.link, "mine", "@SHARED@/linked")
attempt("rename", os.rename, "mine", "@SHARED@/moved")
""", SHARED),
    write("make directories, links, FIFOs and sockets outside", """
import socket
attempt("mkdir", os.mkdir, "@SHARED@/folder")
attempt("symlink", os.symlink, "@CANARY@", "@SHARED@/link")
attempt("mkfifo", os.mkfifo, "@SHARED@/fifo")
attempt("bind", lambda: socket.socket(socket.AF_UNIX).bind("@SHARED@/socket"))
attempt("mknod", os.mknod, "@SHARED@/node", 0o100600)
""", SHARED),
    write("remove outside", 'attempt("remove", os.remove, "@OUTSIDE@/kept")\nattempt("rmdir", os.rmdir, "@OUTSIDE@/empty")'),
    write("through a symbolic link", """
try: os.symlink("@OUTSIDE@", "out"); open("out/new", "w").write("x"); print("ESCAPED by link")
except OSError as error: print("refused:", error)
"""),
    write("through a file without a name", """
attempt("O_TMPFILE", lambda: os.open("@SHARED@", os.O_TMPFILE | os.O_RDWR, 0o600))
fd = os.open("mine", os.O_CREAT | os.O_RDWR)
attempt("link by descriptor", lambda: os.link(f"/proc/self/fd/{fd}", "@SHARED@/linked", follow_symlinks=True))
""", SHARED),
    write("truncate outside", """
attempt("truncate", os.truncate, "@OUTSIDE@/kept", 0)
attempt("truncate", call, "truncate", b"@OUTSIDE@/kept", 0)
attempt("O_TRUNC", lambda: os.open("@OUTSIDE@/kept", os.O_RDONLY | os.O_TRUNC))
attempt("O_TRUNC", lambda: os.open("@OUTSIDE@/kept", os.O_WRONLY | os.O_TRUNC))
"""),
    write("rights and times outside", """
for path in ("@OUTSIDE@", "@OUTSIDE@/kept", "@CANARY@", "@PUBLIC@/train.csv", os.path.dirname("@CANARY@")):
    for what in (lambda: os.chmod(path, 0o777), lambda: os.utime(path, (1, 1)), lambda: os.chown(path, 12345, -1),
                 lambda: os.setxattr(path, "user.x", b"1")):
        try: what(); print("changed, or it says so", path)
        except OSError as error: print("refused:", error)
""", ("seccomp|user",)),
    write("rights and times outside by descriptor", """
fd = os.open("@PUBLIC@/train.csv", os.O_RDONLY) if os.access("@PUBLIC@/train.csv", os.R_OK) else 0
for what in (lambda: os.fchmod(fd, 0o666), lambda: os.utime(fd, (1, 1)), lambda: os.fchown(fd, 12345, -1)):
    try: what(); print("changed, or it says so")
    except OSError as error: print("refused:", error)
""", ("seccomp|landlock|user",)),
    created("file in /tmp", "'/tmp'", SHARED),
    created("file in /var/tmp and /run", "'/var/tmp' if os.path.exists('/var/tmp') else '/run'", SHARED),
    created("file at home", "'/root'", OWNED),
    created("file in the project", "'@PROJECT@'", OWNED),
    created("file beside the work directory", "'..'", OWNED),
    created("file among the libraries", "os.path.dirname(os.path.dirname(__import__('numpy').__file__))", OWNED),
    created("file among the compiled libraries", "os.path.dirname(__import__('numpy').__file__) + '/__pycache__'", OWNED),
    write("libraries for appending", """
import glob, numpy, pandas, sklearn
for module in (numpy, pandas, sklearn, os):
    attempt(module.__name__, lambda: os.open(module.__file__, os.O_WRONLY | os.O_APPEND))
for path in glob.glob(os.path.dirname(numpy.__file__) + "/__pycache__/*.pyc")[:3]:
    attempt(path, lambda: os.open(path, os.O_WRONLY | os.O_APPEND))
"""),
    write("interpreter and start-up files for appending", """
import glob, site, sys
for path in [sys.executable, *glob.glob(sys.prefix + "/pyvenv.cfg"), *glob.glob(site.getsitepackages()[0] + "/*.pth")]:
    attempt(path, lambda: os.open(path, os.O_WRONLY | os.O_APPEND))
"""),
    write("files of the kernel", """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/proc/self/attr/current",
             "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/kmsg"):
    attempt(path, lambda: os.open(path, os.O_WRONLY))
"""),
]  # fmt: skip

DATA = [
    write("the data themselves", """
attempt("write", lambda: open("@PUBLIC@/train.csv", "w").write("x"))
attempt("append", lambda: open("@PUBLIC@/more/note.txt", "a").write("x"))
attempt("create", lambda: open("@PUBLIC@/new", "w"))
attempt("remove", lambda: os.remove("@PUBLIC@/test.csv"))
attempt("replace", lambda: (open("x", "w"), os.replace("x", "@PUBLIC@/test.csv")))
attempt("rename", lambda: os.rename("@PUBLIC@/more", "@PUBLIC@/less"))
"""),
    write("the data truncated by an open for reading", """
for path in ("@PUBLIC@/train.csv", "@PUBLIC@/test.csv"):
    attempt("O_TRUNC", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))
    attempt("O_TRUNC among other flags", lambda: os.open(path, os.O_RDONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC))
    attempt("truncate", os.truncate, path, 0)
"""),
    write("its copy of the data, before the next run", """
import glob, shutil
for path in ("train.csv", "test.csv", "more/note.txt"):
    try: os.chmod(path, 0o666); open(path, "w").write("poisoned")
    except OSError as error: print("refused:", error)
    try: os.remove(path); open(path, "w").write("poisoned")
    except OSError as error: print("refused:", error)
shutil.rmtree("more", ignore_errors=True)
""", ()),
    write("its copy of the data through a writable mapping", """
import mmap
try:
    os.chmod("train.csv", 0o666)
    with open("train.csv", "r+b") as f: mmap.mmap(f.fileno(), 0)[:4] = b"evil"
except OSError as error: print("refused:", error)
""", ()),
    write("a lease on the data", """
import fcntl, time
for path in ("@PUBLIC@/train.csv", "train.csv"):
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
        try: fd = os.open(path, os.O_RDONLY)
        except OSError as error: print("refused:", error); continue
        attempt("lease", fcntl.fcntl, fd, 1024, kind)  # F_SETLEASE
""", ("seccomp",)),
    write("a watch of the data", """
for mask in (0xfff, 0x20):
    if (fd := call("inotify_init1", 0)) >= 0: print("ESCAPED inotify", libc.inotify_add_watch(fd, b"@PUBLIC@", mask))
attempt("fanotify", call, "fanotify_init", 0, 0)
""", ("seccomp",)),
]  # fmt: skip

FILL = [
    write("a million files", "for i in range(10**6): open(str(i), 'wb')", (), statuses=FULL, time_limit_s=20.0),
    write("a million directories and links", """
open("f", "w")
for i in range(10**6):
    os.mkdir(f"d{i}")
    try: os.link("f", f"l{i}")
    except OSError: pass
""", (), statuses=FULL, time_limit_s=20.0),
    write("disk fill in large files", """
import time
for i in range(64):
    try: os.posix_fallocate(os.open(str(i), os.O_CREAT | os.O_WRONLY), 0, 200 << 20)
    except OSError: pass
    time.sleep(0.05)
print("ESCAPED 12 GB")
""", (), statuses=FULL, time_limit_s=20.0),
    write("one file over its limit", """
try: os.posix_fallocate(os.open("large", os.O_CREAT | os.O_WRONLY), 0, 2 << 30); print("ESCAPED 2 GiB in a file")
except OSError as error: print("refused:", error)
""", ()),
    write("disk fill in files without a name", """
import time
for i in range(12):
    fd = os.open("x", os.O_CREAT | os.O_WRONLY); os.remove("x")
    try: os.posix_fallocate(fd, 0, 200 << 20)
    except OSError: pass
time.sleep(1.2)
print("ESCAPED 2.4 GB in deleted files")
""", ("accounting of deleted files",), statuses=("output_limit", "error", "ok"), time_limit_s=20.0),
    write("deep directories", """
for i in range(2000): os.mkdir("d"); os.chdir("d")
os.posix_fallocate(os.open("f", os.O_CREAT | os.O_WRONLY), 0, 1 << 20)
""", (), statuses=("ok", "error", "output_limit")),
    write("directories without rights, odd names", """
for i, name in enumerate(("a" * 255, "\\n", "-rf", "\\udcff", "*", "\\u202e", " ", "submission.csv.tmp")):
    os.mkdir(name); open(name + "/" + name, "w").write("x"); os.mkdir(name + "/in"); os.chmod(name, 0)
os.chmod(".", 0)
""", ()),
    write("files that cannot be removed", """
import fcntl, struct
for name in ("fixed", "folder"):
    os.mkdir(name) if name == "folder" else open(name, "w").close()
    for flag in (0x10, 0x20):  # immutable, append only
        attempt("FS_IOC_SETFLAGS", fcntl.ioctl, os.open(name, os.O_RDONLY), 0x40086602, struct.pack("l", flag))
""", ("capabilities|user",)),
]  # fmt: skip

CASES = OUTSIDE + DATA + FILL
