"""Process trees, and kill -9 of every process of the sandbox: nothing hangs, nothing stays, the pool goes on."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_sandbox import REPOSITORY, children_of, processes_with, wait_for

from sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
KILLS = int(os.environ.get("NANOMLE_KILLS", 8))  # `make hostile` sets 50
PROGRAM = "import time\nfor _ in range(20): time.sleep(0.01)\nprint('done')"
TRAINER = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from sandbox import Sandbox
with Sandbox(2) as sandbox:
    print(sandbox._root, flush=True)
    while True:
        for run in [sandbox.submit({PROGRAM!r}, None) for _ in range(2)]:
            run.result()
"""


@pytest.fixture(scope="module")
def pool():
    with Sandbox(2, memory_gib=1) as pool:
        yield pool


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def sleeper() -> tuple[str, str]:
    """Return a program that leaves its session a process, and a text that the process's command line contains."""
    token = f"300.{secrets.randbelow(10**9)}"
    program = f"import subprocess, time\nsubprocess.Popen(['sleep', '{token}'], start_new_session=True)\ntime.sleep(1)"
    return program, token


def test_child_processes_do_not_survive_nor_hold_up_the_result(open_pool, public):
    program, token = sleeper()
    execution = open_pool.run(program, public)  # `sleep` holds stdout
    assert execution.status == "ok" and execution.wall_s < 2 and processes_with(token) == set()


def test_a_daemon_writes_nothing_after_the_deadline(open_pool, public, tmp_path):
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0:\n"
        f"    while True: open({str(tmp_path / 'log')!r}, 'a').write('x'); time.sleep(0.01)\n"
        "  os._exit(0)\n"
        "time.sleep(60)\n"
    )
    assert open_pool.run(program, public, time_limit_s=0.3).status == "timeout"
    size = (tmp_path / "log").stat().st_size
    time.sleep(0.2)
    assert (tmp_path / "log").stat().st_size == size > 0


def test_processes_that_flee_from_fork_to_fork_are_caught(open_pool, public):
    flee = "os.setsid()\n    while True:\n      os.fork() and os._exit(0)"
    open_pool.run(f"import os\nfor i in range(5):\n  if os.fork() == 0:\n    {flee}", public)
    wait_for(lambda: children_of(open_pool._zygote.pid) == [], 1)


def test_many_runs_leave_no_descriptors_processes_or_directories(open_pool, public):
    open_pool.run("", public)
    pids = (os.getpid(), open_pool._zygote.pid)
    before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
    for index in range(60):
        open_pool.run("1/0" if index % 3 else "import subprocess; subprocess.Popen(['sleep', '300'])", public)
    wait_for(lambda: children_of(open_pool._zygote.pid) == [], 1)
    assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids] == before
    assert os.listdir(open_pool._root) == ["zygote.log"]


@pytest.mark.parametrize(("kills", "status"), [(1, "ok"), (2, "infra_error")])
def test_a_killed_monitor_is_retried_once(open_pool, public, kills, status):
    program, token = sleeper()
    future, seen = open_pool.submit(program, public), set()
    for _ in range(kills):
        (sleep,) = wait_for(lambda: processes_with(token) - seen, 10)
        seen.add(sleep)
        os.kill(parent_of(parent_of(sleep)), signal.SIGKILL)
    assert future.result().status == status
    wait_for(lambda: not processes_with(token) and os.listdir(open_pool._root) == ["zygote.log"], 3)


def test_a_killed_zygote_is_replaced(lesser_machine, public):
    program, token = sleeper()
    with Sandbox(unsafe=True) as pool:
        future, killed = pool.submit(program, public), pool._zygote.pid
        wait_for(lambda: processes_with(token), 10)
        os.kill(killed, signal.SIGKILL)
        assert future.result().status == "ok" and pool._zygote.pid != killed
        assert processes_with(token) == set()


def test_close_ends_what_runs_and_leaves_nothing(public):
    pool = Sandbox()
    running, waiting = (pool.submit("import time; time.sleep(60)", public) for _ in range(2))
    wait_for(lambda: children_of(pool._zygote.pid), 10)
    pool.close()
    assert running.result(0).status == "infra_error" and waiting.cancelled()
    assert processes_with(pool._root) == set() and not os.path.exists(pool._root)


def test_a_killed_trainer_leaves_nothing(lesser_machine, tmp_path):
    program, token = sleeper()
    (tmp_path / "program.py").write_text(program.replace("sleep(1)", "sleep(60)"))
    script = (
        "import pathlib, time\nfrom sandbox import Sandbox\npool = Sandbox(unsafe=True)\n"
        f"pool.submit(pathlib.Path({str(tmp_path / 'program.py')!r}).read_text(), None)\n"
        "print(pool._root, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as trainer:
        root = trainer.stdout.readline().strip()
        wait_for(lambda: processes_with(token), 10)
        trainer.kill()
    wait_for(lambda: not processes_with(token) and not processes_with(root) and not os.path.exists(root), 2)


def pick(pool: Sandbox, target: str, rng: random.Random) -> int | None:
    """Return a process of the pool, None if there is none of that sort at the moment."""
    try:
        if target == "zygote":
            return pool._zygote.pid
        monitors = children_of(pool._zygote.pid)
        return rng.choice(monitors if target == "monitor" else children_of(rng.choice(monitors)))
    except (OSError, IndexError):
        return None


@pytest.mark.parametrize("number", range(KILLS * 3 // 4))
def test_the_pool_survives_a_kill_of_zygote_monitor_or_program(pool, number):
    rng, target = random.Random(number), ("zygote", "monitor", "program")[number % 3]
    runs = [pool.submit(PROGRAM, None, time_limit_s=20) for _ in range(4)]
    time.sleep(rng.uniform(0, 0.3))
    if (pid := pick(pool, target, rng)) is not None:
        os.kill(pid, signal.SIGKILL)
    results = [run.result(timeout=60) for run in runs]
    # a killed program is one that failed; what of ours died is tried again, and may die again with its zygote
    assert {result.status for result in results} <= {"ok", "error", "infra_error"}
    assert all(result.exit_code == -signal.SIGKILL for result in results if result.status == "error")
    assert target == "program" or all(result.status != "error" for result in results)
    assert pool.run(PROGRAM, None).stdout == "done\n"
    wait_for(lambda: not children_of(pool._zygote.pid), 2)
    assert not list(Path(pool._root).glob("run-*"))


@pytest.mark.parametrize("number", range(KILLS - KILLS * 3 // 4))
def test_nothing_is_left_of_a_killed_trainer(number):
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True)
    root = trainer.stdout.readline().strip()
    time.sleep(random.Random(number).uniform(0, 0.5))
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not processes_with(root), 2)
    wait_for(lambda: not Path(root).exists(), 2)
