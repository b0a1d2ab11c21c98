"""What the sandbox costs, against the demands in the last column: one run, cold Python beside it.

    python bench/sandbox.py                  about 1 minute; a table, then one line of JSON
    python bench/sandbox.py --soak 2000      how many programs the growth of descriptors, memory and files is read over

Every time is the median of 22. A demand on a time holds on a machine that does nothing else; ratios hold on any.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from isolation import Isolation
from sandbox import ENVIRONMENT, Sandbox, format_status
from sandbox_files import remove_tree

REPEATS = 22
REFERENCE = """
import pandas as pd
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
train = pd.read_csv("train.csv")
X, y = train.drop(columns="y"), train["y"]
pred = LogisticRegression().fit(X, y).predict_proba(X)[:, 1]
pred += GradientBoostingClassifier(n_estimators=50).fit(X, y).predict_proba(X)[:, 1]
pd.DataFrame({"y": pred}).to_csv("submission.csv", index=False)
"""
TORCH = """
import torch
x, y = torch.randn(200, 8), torch.randn(200, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(50):
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
"""


def write_data(directory: Path) -> Path:
    """Write train.csv: 200 rows, 8 numbers, a binary target."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 8)), columns=list("abcdefgh"))
    frame.assign(y=(frame.a + rng.normal(size=200) > 0).astype(int)).to_csv(directory / "train.csv", index=False)
    return directory


def time_cold(program: str, public: Path, repeats: int) -> list[float]:
    """Return the ms of `python solution.py` in a copy of the data, with the sandbox's environment."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "solution.py").write_text(program)
        Path(folder, "train.csv").write_bytes((public / "train.csv").read_bytes())
        environment = {"PATH": os.environ["PATH"], **ENVIRONMENT}
        for _ in range(repeats):
            started = time.monotonic()
            subprocess.run([sys.executable, "-s", "solution.py"], cwd=folder, env=environment, check=True)
            times.append(1000 * (time.monotonic() - started))
    return times


def time_warm(sandbox: Sandbox, program: str, public: Path) -> tuple[list[float], list[float]]:
    """Return the ms of whole runs, and of Δt inside them. The first run, which warms caches, is left out."""
    totals, inside = [], []
    for _ in range(REPEATS + 1):
        started = time.monotonic()
        execution = sandbox.run(program, public, time_limit_s=60)
        totals.append(1000 * (time.monotonic() - started))
        inside.append(1000 * execution.duration_s)
        assert execution.status == "ok", execution
    return totals[1:], inside[1:]


def time_layers() -> float:
    """Return the ms that Landlock, seccomp and the drop of rights add to a bare fork."""
    root = tempfile.mkdtemp()
    try:
        isolation = Isolation(root)
        isolation.probe()
        work = isolation.make_directory(None)

        def fork(apply: bool) -> float:
            started, parent = time.monotonic(), os.getpid()
            if (pid := os.fork()) == 0:
                if apply:
                    isolation.apply(None, parent, isolation.open_ruleset(work, []))
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            return 1000 * (time.monotonic() - started)

        bare, layered = zip(*((fork(False), fork(True)) for _ in range(5 * REPEATS)), strict=True)
        return statistics.median(layered) - statistics.median(bare)
    finally:
        remove_tree(root)


def measure_overshoot(sandbox: Sandbox) -> float:
    """Return the worst ms by which programs that never end outlive their deadline."""
    programs = "while True: pass", "import time; time.sleep(60)", "import signal; signal.pause()", "x = []\nwhile 1: x += [1]"
    runs = [sandbox.run(program, None, time_limit_s=0.3) for program in programs for _ in range(3)]
    return max(1000 * (run.wall_s - 0.3) for run in runs)


def measure_crowd(public: Path, workers: int) -> float:
    """Return the median Δt with `workers` programs at once, as a ratio to that of one alone."""
    with Sandbox(workers) as sandbox:
        alone = [sandbox.run(REFERENCE, public).duration_s for _ in range(REPEATS)][2:]
        runs = [sandbox.submit(REFERENCE, public) for _ in range(3 * workers)]
        return statistics.median(run.result().duration_s for run in runs) / statistics.median(alone)


def count_resources(sandbox: Sandbox) -> dict[str, float]:
    """Return what must not grow: open files and MiB of trainer and zygote, processes below, files in the pool's folder."""
    zygote, found = sandbox._zygote.pid, {}
    for name, pid in (("trainer", os.getpid()), ("zygote", zygote)):
        found[f"{name}_fds"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[f"{name}_rss_mib"] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    found["children"] = len(Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split())
    found["files"] = sum(1 for _ in Path(sandbox._root).rglob("*"))
    return found


def measure_growth(public: Path, count: int) -> dict[str, float]:
    """Return the growth of count_resources over `count` programs in a row, and as many, 16 at once."""
    with Sandbox(16) as sandbox:
        for run in [sandbox.submit("print(1)", public) for _ in range(32)]:
            run.result()
        before = count_resources(sandbox)
        for _ in range(count):
            assert sandbox.run("print(1)", public).status == "ok"
        for run in [sandbox.submit("print(1)", public) for _ in range(count)]:
            assert run.result().status == "ok"
        time.sleep(0.5)
        after = count_resources(sandbox)
    return {name: after[name] - before[name] for name in before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--soak", type=int, default=200, help="programs in a row, and then 16 at once (200)")
    soak = parser.parse_args().soak
    median, rows = statistics.median, []

    def add(name: str, ours: float, demand: str, met: bool, peer: float | None = None) -> None:
        ratio = peer and peer / ours
        rows.append({"name": name, "ours": ours, "peer": peer, "ratio": ratio, "demand": demand, "met": bool(met)})
        beside = f"{peer:9.1f} {ratio:6.1f}x" if peer else " " * 17
        print(f"{name:52} {ours:9.2f} {beside} {demand:24} {'met' if met else 'MISSED'}", flush=True)

    print(f"{'what':52} {'ours':>9} {'cold':>9} {'':>7} demand")
    with tempfile.TemporaryDirectory() as folder:
        public = write_data(Path(folder))
        with Sandbox(1) as sandbox:
            status = sandbox.status()
            cold = median(time_cold(REFERENCE, public, 5))
            warm = median(time_warm(sandbox, REFERENCE, public)[0])
            add("reference program, whole run, ms", warm, "<= 150 ms, >= 8x", warm <= 150 and cold >= 8 * warm, cold)
            totals, inside = map(median, time_warm(sandbox, "", public))
            add("empty program, whole run, ms", totals, "<= 50 ms", totals <= 50)
            add("empty program, inside Δt, ms", inside, "<= 15 ms", inside <= 15)
            overshoot = measure_overshoot(sandbox)
            add("deadline overshoot, worst of 12, ms", overshoot, "<= 500 ms", overshoot <= 500)
        layers = time_layers()
        add("all layers over a bare fork, ms", layers, "<= 5 ms", layers <= 5)
        with Sandbox(1, warm=("torch",)) as sandbox:
            totals = median(time_warm(sandbox, "", public)[0])
            add("torch in the zygote: empty program, ms", totals, "<= 100 ms", totals <= 100)
            warm, cold = median(time_warm(sandbox, TORCH, public)[0]), median(time_cold(TORCH, public, 3))
            add("torch in the zygote: small training, ms", warm, "<= 10% of cold", warm <= 0.1 * cold, cold)
        crowd = 4 * len(os.sched_getaffinity(0))
        ratio = measure_crowd(public, crowd)
        add(f"Δt of {crowd} programs at once / of one alone", ratio, "0.85 to 1.15", 0.85 <= ratio <= 1.15)
        for name, growth in measure_growth(public, soak).items():
            allowed = 8 if name.endswith("mib") else 0
            add(f"growth over 2 x {soak} programs: {name}", growth, f"<= {allowed}", growth <= allowed)
    print(f"\n{format_status(status)}\n")
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, Linux {platform.release()}, Python {platform.python_version()}"
    print(json.dumps({"bench": "sandbox", "rows": rows, "machine": machine}, ensure_ascii=False))
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
