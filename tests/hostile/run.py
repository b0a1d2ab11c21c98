"""Run the hostile programs in every mode that this machine can be made to have; exit code 1 if one of them succeeds.

    python tests/hostile/run.py [--mode NAME ...] [-k EXPRESSION] [--keep]        about a minute a mode; `make hostile`

Each mode runs in namespaces of its own (pid, mount, IPC, network) where they are to be had, so that a failure hurts only
the test; then the programs that could hurt more run too. A mode that cannot be built is printed with its reason.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import modes

PROJECT = Path(__file__).resolve().parents[2]
TEST = "tests/hostile/test_hostile.py"
USER = 1000  # of the modes without root


@dataclass(frozen=True)
class Mode:
    name: str
    what: str
    uid: int | None = None  # None: the user that we are
    readable: bool = False  # the interpreter, by everybody
    docker: bool = False
    landlock_abi: int | None = None

    def obstacle(self) -> str:
        """Return why the mode cannot be built here; "" if it can."""
        if (self.uid is not None or self.readable or self.docker) and os.getuid() != 0:
            return "needs root to be built"
        if self.docker and os.uname().machine not in modes.AUDIT_ARCH:
            return "the filter is for x86_64 and aarch64"
        if self.name == "root" and modes.is_open():
            return "the interpreter is readable by everybody: the same as as-is"
        if self.readable or self.docker or self.uid is not None:
            return modes.probe(self.build)
        return ""

    def build(self) -> None:
        """Turn this process into one of the mode: what needs most rights first."""
        if self.readable and not modes.is_open():
            modes.check(modes.libc.unshare(modes.NEWNS), "unshare")
            modes.mount("none", "/", None, modes.MS_REC | modes.MS_PRIVATE)
            modes.open_interpreter()
        if self.docker:
            modes.drop_to_docker()
        if self.uid is not None:
            modes.become(self.uid)


MODES = (
    Mode("as-is", "this machine as it is"),
    Mode("root", "root, an interpreter that everybody may read", readable=True),
    Mode("user", "another user, without root", uid=USER, readable=True),
    Mode("docker-root", "root with Docker's default capabilities and seccomp profile", readable=True, docker=True),
    Mode("docker-user", "another user under Docker's default seccomp profile", uid=USER, readable=True, docker=True),
    Mode("landlock-2", "as it is, Landlock ABI at most 2", landlock_abi=2),
    Mode("landlock-4", "as it is, Landlock ABI at most 4", landlock_abi=4),
)


def run_mode(mode: Mode, scratch: Path, namespaces: bool, arguments: list[str]) -> Path:
    """Run pytest in a child that is turned into the mode; return the directory with log, results and report."""
    folder = scratch / mode.name
    folder.mkdir()
    if mode.uid is not None:
        os.chown(folder, mode.uid, mode.uid)

    def start() -> None:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if mode.uid is not None:
            os.fchown(log, mode.uid, mode.uid)
        mode.build()
        modes.default_signals()
        environment = {**os.environ, "HOME": str(folder), "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"NANOMLE_HOSTILE_REPORT": str(folder / "report")}
        environment |= {"NANOMLE_HOSTILE_NAMESPACE": "1"} if namespaces else {}
        environment |= {"NANOMLE_LANDLOCK_ABI": str(mode.landlock_abi)} if mode.landlock_abi else {}
        os.chdir(PROJECT)
        command = [sys.executable, "-m", "pytest", TEST, "-vv", "--durations=20", "--noconftest", "-p", "no:cacheprovider",
                   "--tb=short", f"--junitxml={folder / 'results.xml'}", *arguments]  # fmt: skip
        os.execve(sys.executable, command, environment)

    if (pid := os.fork()) == 0:
        code = 1
        try:
            if namespaces:
                modes.enter_namespaces()
                code = modes.run_as_init(start)
            else:
                start()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        os._exit(code & 0xFF)
    os.waitpid(pid, 0)
    return folder


def read_results(folder: Path) -> tuple[dict[str, int], list[str], list[dict]]:
    """Return counts, the failures' names with reasons, and the harness's report."""
    report = folder / "report"
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    counts, failures = dict.fromkeys(("passed", "failed", "residual", "skipped"), 0), []
    if not (folder / "results.xml").exists():  # pytest was ended, or never began
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-3:] if (folder / "log").exists() else []
        return {**counts, "failed": 1}, [f"no results: pytest itself was ended after: {' | '.join(last)}"], lines
    for test in ElementTree.parse(folder / "results.xml").iter("testcase"):
        skipped, bad = test.find("skipped"), [*test.iter("failure"), *test.iter("error")]
        if bad:
            counts["failed"] += 1
            text = (bad[0].get("message") or "").replace("\n", " ")
            failures.append(f"{test.get('name')}: {text.removeprefix('AssertionError: ')[:300]}")
        elif skipped is not None:
            counts["residual" if skipped.get("type") == "pytest.xfail" else "skipped"] += 1
        else:
            counts["passed"] += 1
    return counts, failures, lines


def print_mode(mode: Mode, folder: Path, seconds: float) -> bool:
    """Print what came of a mode; return whether nothing failed."""
    counts, failures, report = read_results(folder)
    first = next((line for line in report if "layers" in line), {"layers": {}, "evidence": {}})
    layers = first["layers"]
    table = " ".join(f"{name}:{'on' if active else 'OFF'}" for name, active in layers.items())
    numbers = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{mode.name:<12} {numbers} in {seconds:.0f} s | {mode.what} | {table or 'no layers reported'}", flush=True)
    for name, evidence in first["evidence"].items():
        print(f"    {name}: {evidence}")
    for line in report:
        if "residual" in line:
            print(f"    residual, without {' and '.join(line['without'])}: {line['residual']}: {line['effects'][0][:150]}")
    for failure in failures:
        print(f"    FAILED {failure}")
    return counts["failed"] == 0 and counts["passed"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the hostile programs in every mode.", allow_abbrev=False)
    parser.add_argument("--mode", action="append", choices=[mode.name for mode in MODES], help="only these; repeatable")
    parser.add_argument("-k", metavar="EXPRESSION", help="only the programs that match, as in pytest")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and print where they are")
    options = parser.parse_args()
    reason = modes.probe(modes.probe_namespaces)
    if reason:
        print(f"no namespaces ({reason}): drastic programs are left out, and a failure would hurt this machine")
    good, scratch = True, Path(tempfile.mkdtemp(prefix="hostile-run-"))
    scratch.chmod(0o755)
    for mode in MODES:
        if options.mode and mode.name not in options.mode:
            continue
        if obstacle := mode.obstacle():
            print(f"{mode.name:<12} not built: {obstacle}")
            continue
        started_at = time.monotonic()
        folder = run_mode(mode, scratch, not reason, ["-k", options.k] if options.k else [])
        good &= print_mode(mode, folder, time.monotonic() - started_at)
    if options.keep:
        print(f"logs: {scratch}")
    else:
        shutil.rmtree(scratch)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
