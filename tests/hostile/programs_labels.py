"""Programs that look for the labels and other secrets: by path, by link, in memory, in what they inherited."""

from case import Case

READ = ("landlock|user",)  # the file is its owner's alone; without a uid of its own only Landlock keeps it
WALLED = ("landlock",)  # everybody on the machine may read it


def look(name: str, program: str, needs: tuple[str, ...] = READ, **options) -> Case:
    return Case("labels", name, program, needs=needs, **options)


def reading(name: str, program: str, needs: tuple[str, ...] = READ) -> Case:
    """Build a program of expressions, a line each, that should raise."""
    lines = [f"attempt({line!r}, lambda: print({line}))" for line in program.strip().splitlines()]
    return look(name, "@TOOLS@\nimport glob, shutil\n" + "\n".join(lines), needs)


FILES = [
    reading("absolute path", "open('@CANARY@').read()\nos.listdir(os.path.dirname('@CANARY@'))"),
    reading("relative path", "open('../' * 20 + '@CANARY@'[1:]).read()\nopen('.' + '/..' * 9 + '@CANARY@').read()"),
    reading("path by way of /proc/self/root and cwd",
            "open('/proc/self/root@CANARY@').read()\nopen('/proc/self/cwd/' + '../' * 9 + '@CANARY@'[1:]).read()\n"
            "open('/proc/thread-self/root@CANARY@').read()\nopen('/dev/fd/../root@CANARY@').read()"),
    look("symbolic link", """
        import os
        try:
            os.symlink("@CANARY@", "link"); os.symlink(os.path.dirname("@CANARY@"), "folder")
            print(open("link").read(), os.listdir("folder"))
        except OSError as error: print("refused:", error)
    """),
    look("symbolic link in place of the data", """
        import os
        try: os.symlink("@CANARY@", "link"); os.replace("link", "train.csv"); print(open("train.csv").read())
        except OSError as error: print("refused:", error)
    """),
    look("hard link", """
        import os
        try: os.link("@CANARY@", "link"); print("ESCAPED hard link", open("link").read())
        except OSError as error: print("refused:", error)
    """),
    look("hard link by descriptor", """
        @TOOLS@
        try: fd = os.open("@CANARY@", os.O_PATH)
        except OSError as error: print("refused:", error)
        else:
            attempt("linkat", lambda: os.link(f"/proc/self/fd/{fd}", "link", follow_symlinks=True))
            attempt("open again", lambda: print(open(f"/proc/self/fd/{fd}").read()))
    """),
    look("rename and exchange", """
        @TOOLS@
        open("mine", "w").write("x")
        attempt("rename to the work directory", os.rename, "@CANARY@", "labels.csv")
        attempt("rename over it", os.replace, "mine", "@CANARY@")
    """),
    reading("libraries that open for it",
            "__import__('pandas').read_csv('@CANARY@')\n__import__('numpy').genfromtxt('@CANARY@', dtype=str)\n"
            "__import__('linecache').getlines('@CANARY@')[0]\nshutil.copy('@CANARY@', 'copy')\n"
            "__import__('importlib.machinery', fromlist='x').SourceFileLoader('x', '@CANARY@').get_data('@CANARY@')"),
    look("SQLite", """
        @TOOLS@
        import sqlite3
        database = sqlite3.connect("file:@CANARY@?mode=ro", uri=True)
        attempt("sqlite3", lambda: print(database.execute("pragma schema_version").fetchall()))
    """),
    look("openat2, open_tree and a file handle", """
        @TOOLS@
        how = (ctypes.c_uint64 * 3)(0, 0, 0)
        attempt("openat2", call, "openat2", -100, b"@CANARY@", how, 24)
        attempt("open_tree", call, "open_tree", -100, b"/", 1)
        handle = (ctypes.c_int * 40)(128)
        mount = ctypes.c_int()
        attempt("name_to_handle_at", call, "name_to_handle_at", -100, b"@CANARY@", handle, ctypes.byref(mount), 0)
        attempt("open_by_handle_at", call, "open_by_handle_at", os.open(".", os.O_RDONLY), handle, 0)
    """, ("seccomp",)),
    look("file handle made by hand", """
        @TOOLS@
        about = os.stat("@PUBLIC@")
        handle = (ctypes.c_int * 40)(8, 1, about.st_ino & 0x7fffffff, 0)
        attempt("open_by_handle_at", call, "open_by_handle_at", os.open(".", os.O_RDONLY), handle, 0)
    """, ("seccomp|capabilities|user",)),
    look("directory walk", """
        import os
        for folder, _, files in os.walk("@SCRATCH@"):
            for name in files:
                try: print(os.path.join(folder, name), open(os.path.join(folder, name)).read(5000))
                except (OSError, ValueError) as error: print("refused:", error)
    """),
    look("directory walk up from the work directory", """
        import os
        folder = os.path.abspath(".")
        while folder != "/":
            folder = os.path.dirname(folder)
            try: print("found", folder, os.listdir(folder)[:5])
            except OSError as error: print("refused:", error)
        for root in ("/root", "/home"):
            try: print("ESCAPED" if (names := os.listdir(root)) else "empty", root, names)
            except OSError as error: print("refused:", error)
    """, WALLED),
    reading("another run's directory by name", "os.listdir('@OTHER_RUN@')\nopen('@OTHER_RUN@/submission.csv').read()"),
    look("another run's directory by glob", """
        import glob
        for path in glob.glob("../*/*") + glob.glob("../*") + glob.glob("/tmp/nanomle-*/run-*/*"):
            try: print(path, open(path).read(2000))
            except (OSError, ValueError) as error: print("refused:", error)
    """),
    look("another run's directory for writing", """
        @TOOLS@
        attempt("write", lambda: open("@OTHER_RUN@/submission.csv", "a").write("x"))
        attempt("create", lambda: open("@OTHER_RUN@/note", "w"))
        attempt("rename", os.rename, "@OTHER_RUN@/submission.csv", "mine.csv")
    """),
    reading("files of the machine's users",
            "open('/etc/shadow').read()\nos.listdir('/root')\nos.listdir(os.path.expanduser('~root') + '/.ssh')\n"
            "open('/proc/1/environ').read()[0]\nopen('/dev/mem', 'rb')"),
    reading("block devices", "[open(p, 'rb').read(1) for p in glob.glob('/dev/vd*') + glob.glob('/dev/sd*') + ['/dev/x']]\n"
            "[open(p, 'rb').read(1) for p in glob.glob('/dev/nvme*') + glob.glob('/dev/loop*') + ['/dev/x']]"),
]  # fmt: skip

SELF = [
    look("inherited descriptors listed", """
        import os
        for fd in os.listdir("/proc/self/fd"):
            try: print(fd, os.readlink(f"/proc/self/fd/{fd}"))
            except OSError: continue
            if int(fd) > 2 and "/proc" not in os.readlink(f"/proc/self/fd/{fd}"): print("ESCAPED: inherited", fd)
    """, ()),
    look("inherited descriptors read and written", """
        import os
        for fd in range(3, 1024):
            for flags, use in ((os.O_RDONLY, lambda: os.read(fd, 4096)), (os.O_WRONLY, lambda: os.write(fd, b"R"))):
                try: os.set_blocking(fd, False); print("ESCAPED by descriptor", fd, use())
                except OSError: pass
    """, ()),
    look("inherited descriptors as sockets and directories", """
        import os, socket
        for fd in range(3, 1024):
            try: print("ESCAPED by directory", fd, os.listdir(fd))
            except OSError: pass
            try: print("ESCAPED by socket", fd, socket.socket(fileno=fd).getpeername())
            except OSError: pass
        for fd in (0, 1, 2):
            try: print(fd, os.listdir(f"/proc/self/fd/{fd}/.."))
            except OSError as error: print("refused:", error)
    """, ()),
    look("environment", """
        import ctypes, os
        print(dict(os.environ), open("/proc/self/environ").read())
        names = ("TOKEN", "KEY", "SECRET", "PASSWORD", "SSH", "AWS", "HF_", "WANDB")
        for name in os.environ:
            if any(part in name.upper() for part in names): print("ESCAPED", name)
        pointers = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        i = 0
        while pointers[i]: print(pointers[i]); i += 1
    """, ()),
    look("whole memory of its own", """
        import re
        for line in open("/proc/self/maps"):
            span, rights, *_ = line.split()
            if not rights.startswith("rw"): continue
            start, end = (int(x, 16) for x in span.split("-"))
            try:
                memory = open("/proc/self/mem", "rb", 0)
                memory.seek(start)
                data = memory.read(min(end - start, 1 << 28))
            except (OSError, ValueError, OverflowError): continue
            for found in set(re.findall(rb"canary-[0-9a-f]{32}", data or b"")): print("ESCAPED", found)
        print("looked")
    """, (), says="looked", time_limit_s=20.0),
    look("garbage collector", """
        import gc, re
        gc.unfreeze()
        pattern = re.compile("canary-[0-9a-f]{32}")
        for thing in gc.get_objects():
            inner = list(thing.values()) if type(thing) is dict else thing if type(thing) in (list, tuple) else ()
            for value in inner:
                if type(value) is bytes: value = value.decode(errors="replace")
                if type(value) is str and pattern.search(value): print("ESCAPED", pattern.findall(value))
            for name in ("labels", "answers") if type(thing) is dict else ():
                if type(thing.get(name)).__name__ in ("DataFrame", "Series"): print("ESCAPED", name)
        print("looked")
    """, (), says="looked", time_limit_s=20.0),
    look("garbage collector for sockets, pipes and pools", """
        import gc
        for thing in gc.get_objects():
            kind = type(thing).__module__ + "." + type(thing).__name__
            if kind in ("multiprocessing.connection.Connection", "socket.socket", "sandbox.Sandbox"):
                try: print("held", kind, thing.fileno(), (getattr(thing, "send_bytes", None) or thing.send)(b"x"), "ESCAPED")
                except (OSError, AttributeError) as error: print("dead", kind, error)
    """, ()),
    look("frames up to the caller", """
        import sys
        frame = sys._getframe()
        while frame:
            print(frame.f_code.co_filename, frame.f_code.co_name, {k: repr(v)[:300] for k, v in frame.f_locals.items()})
            for name in ("labels", "answers", "private_dir", "token", "secrets_", "canary"):
                if name in frame.f_locals or name in frame.f_globals: print("ESCAPED", name)
            frame = frame.f_back
    """, ()),
    look("frames of all threads and of a traceback", """
        import sys, threading
        for frame in sys._current_frames().values():
            while frame:
                for name, value in {**frame.f_globals, **frame.f_locals}.items():
                    for attribute in ("labels", "answers", "private_dir"):
                        if hasattr(value, attribute) and type(value).__name__ == "Task": print("ESCAPED", name)
                frame = frame.f_back
        print(len(threading.enumerate()))
    """, ()),
    look("modules that are loaded", """
        import sys
        names = ("sandbox", "sandbox_zygote", "isolation", "tasks", "reward", "rollout", "train", "ppo", "instrument")
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in names: print("ESCAPED", name, getattr(module, "__file__", None))
            if str(getattr(module, "__file__", "")).startswith("@PROJECT@/tasks"): print("ESCAPED", name)
    """, ()),
]  # fmt: skip

PROJECT = [
    look("import of the project", """
        @TOOLS@
        import importlib
        for name in ("sandbox", "sandbox_zygote", "sandbox_program", "isolation", "seccomp", "tasks", "reward"):
            attempt("import " + name, importlib.import_module, name)
    """, ()),
    look("import of the project by its path", """
        @TOOLS@
        import importlib, sys
        sys.path.insert(0, "@PROJECT@")
        for name in ("sandbox", "tasks", "reward", "instrument"): attempt("import " + name, importlib.import_module, name)
    """, WALLED),
    reading("files of the project",
            "open('@PROJECT@/tasks/published.csv').read()[:9]\nopen('@PROJECT@/sandbox.py').read()[:9]\n"
            "os.listdir('@PROJECT@')\nopen('@PROJECT@/.git/HEAD').read()", WALLED),
]  # fmt: skip

CASES = FILES + SELF + PROJECT
