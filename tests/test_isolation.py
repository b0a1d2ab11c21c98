"""The layers: the seccomp program instruction by instruction, what a lesser machine gives, what status() tells."""

import errno
import os
import re
import struct
import sys
import tempfile
from pathlib import Path

import pytest

from isolation import Layer
from sandbox import InfraError, Sandbox, main
from sandbox_files import find_closed_link
from seccomp import ALLOW, ANSWER, CHECKS, DENIED, MACHINES, build_filter

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no isolation")
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
PID = 4321
# read write openat mmap futex exit_group, by machine
FREE = {"x86_64": (0, 1, 9, 202, 231), "aarch64": (63, 64, 222, 98, 94)}
NUMBERS = {name: calls for group in (*DENIED.values(), " ".join(c.call for c in CHECKS)) for name, *calls in
           (call.split("/") for call in group.split())}  # fmt: skip


def answer(machine: str, call: str | int, *arguments: int, architecture: int | None = None) -> int | None:
    """Run the filter as the kernel would; return the error number, None where the call is allowed."""
    column, own_architecture = MACHINES[machine]
    number = int(NUMBERS[call][column - 1]) if isinstance(call, str) else call
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture or own_architecture, 0, *(value % 2**64 for value in values))
    code, at, accumulator = list(struct.iter_unpack("HBBI", build_filter(PID, machine))), 0, 0
    while True:
        opcode, if_true, if_false, operand = code[at]
        at += 1
        if opcode == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif opcode == 0x54:
            accumulator &= operand
        elif opcode in (0x15, 0x35):
            at += if_true if (accumulator == operand if opcode == 0x15 else accumulator >= operand) else if_false
        else:
            assert opcode == 0x06
            return None if operand == ALLOW else operand - ANSWER


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("clone", (0x3D0F00,), None),  # a thread, as glibc makes it
        ("clone", (0x01200011,), errno.EPERM),  # a fork
        ("clone", (0x10000 | 0x10000000,), errno.EPERM),  # a thread with a user namespace
        ("clone3", (), errno.ENOSYS),  # glibc falls back to clone
        ("execve", (), errno.EPERM),
        ("kill", (PID, 9), None),
        ("kill", (PID + 1, 9), errno.EPERM),
        ("kill", (0, 9), errno.EPERM),
        ("kill", (-1, 9), errno.EPERM),
        ("kill", (-PID, 9), errno.EPERM),
        ("tgkill", (PID, PID + 3, 9), None),
        ("prlimit64", (0,), None),
        ("prlimit64", (PID,), None),
        ("prlimit64", (1,), errno.EPERM),
        ("setpriority", (0, 0, 5), None),
        ("setpriority", (0, PID + 1, 5), errno.EPERM),
        ("setpriority", (2, 0, 5), errno.EPERM),  # of a user
        ("socket", (1,), errno.EACCES),
        ("socketpair", (1, 1), None),
        ("socketpair", (1, 1 | 0x80000), None),  # close-on-exec
        ("socketpair", (1, 2), errno.EACCES),
        ("socketpair", (30, 1), errno.EACCES),
        ("fcntl", (5, 3), None),
        ("fcntl", (5, 1030), None),
        ("fcntl", (5, 8), errno.EPERM),  # F_SETOWN
        ("fcntl", (5, 1024), errno.EPERM),  # F_SETLEASE
        ("ioctl", (1, 0x5401), None),
        ("ioctl", (1, 0x5412), errno.ENOTTY),  # TIOCSTI
        ("prctl", (1, 0), errno.EPERM),  # PR_SET_PDEATHSIG
        ("prctl", (15, 0), None),  # PR_SET_NAME
        ("openat", (3, 0, os.O_TRUNC | os.O_RDONLY), errno.EPERM),
        ("openat", (3, 0, os.O_TRUNC | os.O_WRONLY | os.O_CREAT), None),
        ("openat", (3, 0, os.O_RDONLY), None),
        ("fchmod", (), 0),  # pretends success
        ("memfd_create", (), errno.ENOSYS),
        ("io_uring_setup", (), errno.ENOSYS),
        (463, (), errno.ENOSYS),  # newer than the filter
        (0x40000000, (), errno.ENOSYS),  # x32
    ],
)
def test_the_filter_answers(machine, call, arguments, expected):
    assert answer(machine, call, *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_lets_ordinary_calls_pass_and_other_tables_not(machine):
    assert [answer(machine, number) for number in FREE[machine]] == [None] * 5
    assert answer(machine, FREE[machine][0], architecture=0x40000003) == errno.EPERM  # int 0x80: the table of i386


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_of_calls_are_those_of_the_kernel_headers(machine):
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"no {header}: install the kernel headers (linux-libc-dev)")
    pattern = r"#define __NR(?:3264)?_(\w+)\s+(\d+)$"
    known = dict(re.findall(pattern, header.read_text(), re.MULTILINE))
    ours = {name: calls[MACHINES[machine][0] - 1] for name, calls in NUMBERS.items()}
    assert {name: number for name, number in ours.items() if name in known and number != known[name]} == {}


@pytest.fixture(scope="module")
def pool():
    with Sandbox() as pool:
        yield pool


@linux
@pytest.mark.parametrize(
    ("without", "unsafe"), [("network", False), ("seccomp", True), ("landlock,user", True), ("landlock,user,seccomp", True)]
)
def test_a_machine_without_walls_is_refused_or_marked(monkeypatch, without, unsafe):
    monkeypatch.setenv("NANOMLE_SANDBOX_WITHOUT", without)
    if unsafe:
        with pytest.raises(InfraError, match="--unsafe-sandbox"):
            Sandbox()
    with Sandbox(unsafe=unsafe) as sandbox:
        assert {layer.name for layer in sandbox.status() if not layer.active} >= set(without.split(","))
        assert sandbox.run("print(1)", None).unsafe is unsafe


@linux
@pytest.mark.parametrize("abi", [1, 2, 4])
def test_older_versions_of_landlock_protect_files(monkeypatch, tmp_path, abi):
    monkeypatch.setenv("NANOMLE_LANDLOCK_ABI", str(abi))
    (tmp_path / "label").write_text("secret")
    with Sandbox() as sandbox:
        (evidence,) = (layer.evidence for layer in sandbox.status() if layer.name == "landlock")
        execution = sandbox.run(f"print(open({str(tmp_path / 'label')!r}).read())", None)
    assert f"ABI {abi};" in evidence and "PermissionError" in execution.stderr and "secret" not in execution.stdout


@linux
def test_status_is_a_table_and_needs_no_program(capsys):
    assert main(["--status"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["network", "limits", "capabilities", "user", "landlock", "seccomp", "together"]


@linux
def test_the_cpu_clock_takes_no_account_of_sleep(pool):
    program = "import time; time.sleep(1.5)"
    with Sandbox(2, clock="cpu") as cpu:
        asleep, timed = cpu.submit(program, None), pool.submit(program, None)
        asleep, timed = asleep.result(), timed.result()
    assert asleep.sleeper and timed.sleeper
    assert timed.duration_s > 1.4 and asleep.duration_s < 0.5
    with pytest.raises(ValueError, match="clock"):
        Sandbox(clock="sun")


@linux
def test_programs_run_on_the_cores_they_are_given():
    core = max(os.sched_getaffinity(0))
    with Sandbox(cores=[core]) as sandbox:
        assert sandbox.run("import os; print(os.sched_getaffinity(0))", None).stdout == f"{{{core}}}\n"


@linux
def test_pools_of_threads_work_without_processes(pool):
    program = "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(4).map(abs, [-1, -2]))"
    assert pool.run(program, None).stdout == "[1, 2]\n"


@linux
def test_a_program_can_open_itself(pool):
    program = "import inspect\ndef f(): return 1\nprint(open(__file__).readline(), inspect.getsource(f))"
    assert pool.run(program, None).stdout == "import inspect\n def f(): return 1\n\n"


@linux
def test_work_that_threads_do_is_in_the_duration(pool):
    """The main thread waits for its own threads, ready to run: that is no delay by others."""
    work = "import hashlib, threading\ndef work(): hashlib.pbkdf2_hmac('sha256', b'a', b'b', {})\n"
    threads = "import _thread\ndone = []\ndef both(): work(); done.append(1)\n"
    threads += "for _ in range(20): _thread.start_new_thread(both, ())\n"
    waits = "while len(done) < 20: hashlib.pbkdf2_hmac('sha256', b'a', b'b', 3000)"
    alone = pool.run(work.format(600_000) + "work()", None)
    hidden = pool.run(work.format(30_000) + threads + waits, None)
    assert hidden.status == "ok" and hidden.duration_s >= min(hidden.cpu_s, hidden.wall_s) - 1e-6
    assert hidden.duration_s > 0.7 * alone.duration_s


@linux
def test_a_link_inside_the_data_opens_its_target_and_nothing_beside_it(pool, tmp_path):
    (tmp_path / "public" / "images").mkdir(parents=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.jpg").write_text("picture")
    (tmp_path / "real" / "labels.csv").write_text("secret")
    (tmp_path / "public" / "images" / "1.jpg").symlink_to(tmp_path / "real" / "1.jpg")
    (tmp_path / "public" / "nowhere").symlink_to(tmp_path / "missing")
    program = "import os\npath = os.path.realpath('images/1.jpg')\nprint(open(path).read(), os.listdir('.'))\n"
    execution = pool.run(program + "open(os.path.dirname(path) + '/labels.csv').read()", tmp_path / "public")
    assert execution.stdout.startswith("picture") and "nowhere" not in execution.stdout
    assert "PermissionError" in execution.stderr


@linux
@pytest.mark.parametrize("call", ["vmsplice/278/75", "splice/275/76", "tee/276/77", "fallocate/285/47"])
def test_memory_in_pipes_and_reserved_disk_are_closed(call):
    name, *numbers = call.split("/")
    assert answer("x86_64", name) == (errno.EOPNOTSUPP if name == "fallocate" else errno.EPERM)
    assert NUMBERS[name] == numbers


@pytest.fixture
def linked_data():
    """A public folder with a link to an image in another folder, both open to every user as they are in /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name).resolve()
        for folder in (root, root / "public/images", root / "real/deep"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        (root / "real/deep/1.jpg").write_bytes(b"jpeg")
        (root / "public/images/1.jpg").symlink_to(root / "real/deep/1.jpg")
        yield root


def test_a_folder_that_closes_linked_data_is_named(linked_data):
    public, image = str(linked_data / "public"), linked_data / "real/deep/1.jpg"
    assert find_closed_link(public) == ""
    for path, mode in ((image, 0o600), (image.parent, 0o700), (linked_data / "real", 0o744)):  # the last one without x
        path.chmod(mode)
        assert find_closed_link(public) == str(path)
        path.chmod(0o755)
    (linked_data / "real").chmod(0o700)
    (linked_data / "public/images").chmod(0o700)  # then all of it is copied, so nothing is closed
    assert find_closed_link(public) == ""


@linux
def test_closed_data_are_refused_where_programs_are_another_user(pool, linked_data, monkeypatch):
    both = [Layer(name, True, "") for name in ("user", "landlock")]
    monkeypatch.setattr(pool, "_layers", both)
    assert pool.why_closed(linked_data / "public") == ""
    (linked_data / "real").chmod(0o700)
    assert f"cannot enter {linked_data}/real, where" in pool.why_closed(linked_data / "public")
    assert f"chmod o+x {linked_data}/real" in pool.why_closed(linked_data / "public")
    monkeypatch.setattr(pool, "_layers", both[1:])  # one user, which may
    assert pool.why_closed(linked_data / "public") == ""
