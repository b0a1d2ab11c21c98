"""The control experiment: the attacks without any sandbox. One that shows no effect here proves nothing there.

    python tests/hostile/control.py [-k TEXT]       in namespaces of its own; needs root or user namespaces

Every program that claims to need a layer runs as a plain `python solution.py`. Printed are those that had no effect on
this machine: because the kernel lacks the call, because we are not root (or are), or because the program is wrong.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import modes


class Bare:
    """Stands in for Sandbox, with a monitor beneath it, and no walls at all."""

    def __init__(self, *_, **__):
        self._root = tempfile.mkdtemp(prefix="nanomle-")
        self.zygote = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.count = 0

    def run(self, program: str, public_dir: Path, time_limit_s=5.0):
        from sandbox import Execution

        self.count += 1
        work = Path(self._root, f"run-{self.count}")
        shutil.copytree(public_dir, work)
        (work / "solution.py").write_text(program, errors="surrogatepass")
        command = [sys.executable, __file__, "--monitor", str(work), str(time_limit_s)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as monitor:
            try:
                answer, _ = monitor.communicate(timeout=time_limit_s + 1.5)
                execution = Execution(**json.loads(answer))
            except (subprocess.TimeoutExpired, ValueError):
                monitor.send_signal(signal.SIGCONT)
                monitor.kill()
                execution = Execution("infra_error", note="the monitor died or stopped")
        shutil.rmtree(work, ignore_errors=True)
        return execution

    def close(self) -> None:
        self.zygote.kill()
        self.zygote.wait()
        shutil.rmtree(self._root, ignore_errors=True)


def run_monitor(work: str, time_limit_s: str) -> None:
    """Run solution.py in the work directory, print the fields of an Execution as JSON."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, "solution.py"], cwd=work, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=err, start_new_session=True)  # fmt: skip
        try:
            status = "error" if process.wait(float(time_limit_s)) else "ok"
        except subprocess.TimeoutExpired:
            status = "timeout"
            process.kill()
        texts = [os.pread(stream.fileno(), 1 << 20, 0).decode(errors="replace") for stream in (out, err)]
    print(json.dumps({"status": status, "stdout": texts[0], "stderr": texts[1]}))


def run_control(text: str) -> None:
    """Attack without walls; print the programs without effect, and how many had one."""
    import harness as harness_module
    import test_hostile

    harness_module.Sandbox = Bare
    harness = harness_module.Harness()
    cases = [case for case in test_hostile.CASES if case.needs and not case.drastic and text in case.name]
    toothless = []
    for case in cases:
        try:
            effects = harness.attack(case)
        except Exception as error:
            effects = [f"the harness failed: {error!r}"]
        print(f"{case.kind}: {case.name}: {effects[0][:110] if effects else 'NO EFFECT'}", flush=True)
        toothless += [] if effects else [case.name]
    harness.close()
    print(f"{len(cases) - len(toothless)} of {len(cases)} attacks have an effect without walls; without one: {toothless}")


def main() -> None:
    if sys.argv[1:2] == ["--monitor"]:
        return run_monitor(*sys.argv[2:])
    parser = argparse.ArgumentParser(description="Attack without a sandbox.", allow_abbrev=False)
    parser.add_argument("-k", default="", metavar="TEXT", help="only the programs whose name holds it")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["NANOMLE_HOSTILE_NAMESPACE"] = "1"
    modes.enter_namespaces()
    sys.exit(modes.run_as_init(lambda: run_control(options.k)))


if __name__ == "__main__":
    main()
