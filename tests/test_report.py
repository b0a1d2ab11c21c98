"""report.py: one page that asks for nothing else, whatever programs wrote."""

import json
import re
from html.parser import HTMLParser

import pytest
from conftest import run_script

import report
from checkpoint import UsageError
from instrument import MILESTONES
from report_html import PROGRAM_CHARS, cut, from_markdown, text
from robust_table import compare, summarise

HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"><svg onload=x> & </code></pre>\x00\u202e\ud800"
VOID = {"meta", "img"}
TAGS = {"html", "head", "meta", "title", "style", "body", "section", "h1", "h2", "h3", "p", "span", "code", "pre", "div",
        "table", "tr", "th", "td", "img", "details", "summary"}  # fmt: skip
ATTRIBUTES = {"charset", "name", "content", "http-equiv", "lang", "class", "src", "alt"}
LIMIT = 3 * 2**20


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag that opens closes."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def assert_harmless(page):
    """The browser makes of it our tags alone, without a handler, and fetches nothing."""
    parsed = Page(page)
    assert {*parsed.tags} <= TAGS
    assert {name for name, _ in parsed.attributes} <= ATTRIBUTES
    assert all(value.startswith("data:image/png;base64,") for name, value in parsed.attributes if name == "src")
    assert page.isascii() and len(page) < LIMIT and "url(" not in page and "@import" not in page
    return parsed


def episode(step, index, score=None, program="x = 1\n", stderr="", status="error", reason="", task="random-pizza"):
    milestones = MILESTONES if score is not None else MILESTONES[:2]
    return {
        "step": step, "index": index, "task": task, "kind": "scratch", "program": program, "response": program,
        "execution": {"status": "ok" if score is not None else status, "stderr": stderr, "duration_s": 0.1 + index},
        "reward": {"total": score - 0.5 if score is not None else -9.8, "score": score, "milestones": milestones,
                   "penalties": {}, "reason": reason},
    }  # fmt: skip


def record(step, **more):
    shares = {f"milestone/{name}": 0.5 for name in MILESTONES} | {"sandbox/ok_frac": 0.4, "sandbox/error_frac": 0.6}
    return {"step": step, "reward/mean": -5.0 + step, "rollout/valid_frac": 0.3, "duration/mean_s": 0.4, **shares, **more}


def write_run(run, metrics=None, episodes=None, **config):
    run.mkdir(exist_ok=True)
    settings = {"model": "tiny", "task": "random-pizza", "steps": 3, "batch_size": 4, "seed": 0, "temperature": 0.7,
                "learning_rate": 2.5e-4, "data_dir": None, **config}  # fmt: skip
    (run / "config.json").write_text(json.dumps(settings))
    if episodes is None:
        episodes = [episode(s, i, 0.7 if i % 2 else None, f"x = {s}{i}\n") for s in (1, 2, 3) for i in range(8)]
    for name, lines in (("metrics", metrics or [record(step) for step in (1, 2, 3)]), ("episodes", episodes)):
        (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "a-run")


def split(score):
    return {"valid_frac": 0.5, "mean": score, "median": score, "best": score, "best_of_k": {"1": score}}


def result(task, **more):
    start, trained = ({"n": 8, "mean_reward": x, "val": split(0.6), "test": split(x)} for x in (0.6111, 0.7222))
    return {"task": task, "data": "twin", "metric": "auc", "temperature": 0.7, "start": start, "trained": trained, **more}


def robustness():
    episodes = [{"repeat": 0, "index": i, "reward": -1.0 * i, "score": 0.8} for i in range(2)]
    rows = [{"policy": "trained", "perturbation": name, "left_out": None, **summarise(episodes), **compare(episodes, episodes)}
            for name in ("none", "typos")]  # fmt: skip
    task = {"task": "random-pizza", "data": "twin", "metric": "auc", "notes": ["a note"], "rows": rows}
    return {"samples": 2, "repeats": 1, "temperature": 0.7, "policies": {"trained": "step_3"}, "tasks": [task]}


def test_the_page_is_one_file_that_asks_for_nothing(run):
    (run / "eval.json").write_text(json.dumps(result("random-pizza")))
    (run / "robust.json").write_text(json.dumps(robustness()))
    (run / "selected.py").write_text("chosen = 1\n")
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert_harmless(page)
    assert "http://" not in page and "https://" not in page and not re.findall(r'src="(?!data:)', page)
    assert page.count("<img") == 4 and len(page.encode()) < LIMIT


def test_it_shows_settings_results_robustness_samples_and_the_selected_program(run):
    (run / "eval.json").write_text(json.dumps(result("random-pizza", baselines={"linear": {"reported": {"score": 0.6543}}})))
    (run / "robust.json").write_text(json.dumps(robustness()))
    (run / "selected.py").write_text("chosen = 1\n")
    (run / "step_3").mkdir()
    (run / "step_3" / "README.md").write_text("... commit 0123abc:\n\n    train.py --task random-pizza --steps 3\n")
    words = " ".join(assert_harmless(report.build_page(run)).texts)
    for shown in ("a-run", "0.00025", "twin", "0123abc", "train.py --task random-pizza --steps 3", "step 3 of 3: finished",
                  "0.6111", "0.7222", "linear 0.6543", "typos", "a note", "chosen = 1", "x = 11\n", "x = 37\n", "score 0.7000",
                  "Δt 1.10 s", "2 of 7 milestones", "7 of 7 milestones"):  # fmt: skip
        assert shown in words, shown
    assert "To make it" not in words


def test_what_is_missing_is_said_with_the_command_that_makes_it(run):
    words = " ".join(assert_harmless(report.build_page(run)).texts)
    assert f"python eval.py {run}" in words and f"python eval.py {run} --robust" in words and words.count("To make it") == 3


def test_hostile_text_stays_text(tmp_path):
    """In every place at once: fields of an episode, a setting, the program chosen, results, the card, the folder's name."""
    run, fields = tmp_path / "<img src=x onerror=alert(1)>", ("program", "stderr", "reason", "status", "task")
    episodes = [episode(1, i, **{"program": f"x = {i}\n", field: f"{field} {HOSTILE}"}) for i, field in enumerate(fields)]
    write_run(run, episodes=episodes, model=f"config {HOSTILE}")
    (run / "selected.py").write_bytes(f"selected {HOSTILE}".encode(errors="replace"))
    (run / "eval.json").write_text(json.dumps(result(f"eval {HOSTILE}")))
    (run / "step_1").mkdir()
    (run / "step_1" / "README.md").write_text(f"commit <script>:\n\n    {HOSTILE[:60]}\n")
    page = report.build_page(run)
    words = "".join(assert_harmless(page).texts)
    for place in (*fields, "config", "selected", "eval"):
        assert f"{place} {HOSTILE[:50]}" in words, place  # it is shown
    assert run.name in words
    assert "<script" not in page and "\x00" not in page and "\u202e" not in words


def test_text_escapes_and_shows_what_cannot_be_seen():
    assert text("<a href='x'>\"&") == "&lt;a href=&#x27;x&#x27;&gt;&quot;&amp;"
    assert text("a\tb\r\nc\x00\u202e\ud800") == "a\tb\nc\\u0000\\u202e\\ud800"
    assert text("\x1b[2J\U000e0041\u3164\xad") == "\\u001b[2J\\ue0041\\u3164\\u00ad"


def test_programs_of_the_starting_policy_are_not_shown_as_the_trained_ones(run):
    for name in ("selected_insults", "selected_start_insults", "selected_tabular-may-2022", "selected", "selected_start"):
        (run / f"{name}.py").write_text(f"of = {name!r}\n")
    page = report.build_page(run)
    assert re.findall("of = &#x27;(.*)&#x27;", page) == [
        "selected", "selected_insults", "selected_tabular-may-2022",
    ]  # fmt: skip


def test_markdown_cells_are_escaped():
    page = from_markdown("# a <b>\n\n| h | <i> |\n| --- | --- |\n| 1 | <script> |\n\n- `x` & y\n")
    assert page == (
        '<h3>a &lt;b&gt;</h3><div class="wide grid"><table><tr><th>h</th><th>&lt;i&gt;</th></tr>'
        "<tr><td>1</td><td>&lt;script&gt;</td></tr></table></div><p><code>x</code> &amp; y</p>"
    )


def test_a_page_of_the_longest_texts_stays_small(tmp_path):
    wide = "\x00" * 50_000  # six characters each
    episodes = [episode(s, i, 0.5 if i % 2 else None, f"{s}{i}" + wide, wide, reason=wide) for s in (1, 2) for i in range(8)]
    run = write_run(tmp_path / "run", episodes=episodes, task="all", note=wide)
    for i in range(20):
        (run / f"selected_{i}.py").write_text('"&' * 50_000)
    assert_harmless(report.build_page(run))


def test_cut_says_how_much_is_left_out():
    assert cut("x" * PROGRAM_CHARS, PROGRAM_CHARS) == "x" * PROGRAM_CHARS
    assert cut("a" * 60 + "b" * 60, 100) == "a" * 50 + "\n... 20 characters left out ...\n" + "b" * 50


def test_a_run_that_goes_on_ends_in_half_a_line(run):
    whole = report.build_page(write_run(run, steps=9))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        with open(run / name, "a") as file:
            file.write('{"step": 4, "rew')
    assert report.build_page(run) == whole and "step 3 of 9: still going, or stopped" in whole


def test_a_run_of_one_step_without_a_valid_program(tmp_path):
    run = write_run(tmp_path / "run", [record(1)], [episode(1, 0)])
    assert_harmless(report.build_page(run))
    assert_harmless(report.build_page(write_run(run, [record(1)], [])))


def test_several_tasks(tmp_path):
    names = ("insults", "spooky-author")
    metrics = [record(s, **{f"task/{name}/reward": -1.0 * s for name in names}) for s in (1, 2)]
    episodes = [episode(s, i, 0.6, f"y = {s}{i}\n", task=names[i]) for s in (1, 2) for i in range(2)]
    run = write_run(tmp_path / "run", metrics, episodes, task=",".join(names))
    (run / "eval.json").write_text(json.dumps({"tasks": [result(name) for name in names]}))
    for name in names:
        (run / f"selected_{name}.py").write_text(f"chosen = {name!r}\n")
    page = report.build_page(run)
    words = " ".join(assert_harmless(page).texts)
    assert page.count("<img") == 5
    assert all(f"{name} (twin data), auc" in words and f"chosen = '{name}'" in words for name in names)


def test_samples_are_the_first_and_the_last_different_ones():
    episodes = report.Episodes()
    for step in range(1, 30):
        episodes.add(episode(step, 0, 0.7, f"x = {step}"))
        episodes.add(episode(step, 1, 0.7, "again"))
        episodes.add(episode(step, 2))
    programs = [[e["program"] for e in kept[True]] for kept in (episodes.first, episodes.last)]
    assert programs == [["x = 1", "again", "x = 2"], ["x = 27", "x = 28", "x = 29"]]
    assert len(episodes.first[False]) == 1 and not episodes.last[False] and len(episodes.durations) == 87


def test_out(run, tmp_path):
    assert report.main([str(run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>") and not (run / "report.html").exists()


def test_what_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.json").write_text("{}")
    for arguments, reason in (
        ([run, "--out", tmp_path / "no" / "x.html"], "there is no folder"), ([run, "--out", tmp_path], "it is a folder"),
        ([tmp_path / "empty"], "no config.json"), ([tmp_path / "new"], "no finished step"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=reason):
            report.main([str(argument) for argument in arguments])
    for name, content in (("eval.json", "{}"), ("eval.json", "half a"), ("robust.json", "{}"), ("episodes.jsonl", "{}\n")):
        kept = (run / name).read_text() if (run / name).exists() else None
        (run / name).write_text(content)
        with pytest.raises(UsageError, match=name):
            report.main([str(run)])
        (run / name).unlink() if kept is None else (run / name).write_text(kept)


def test_a_missing_run_is_exit_code_2(tmp_path):
    done = run_script("report.py", tmp_path / "nothing")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1 and "config.json" in done.stderr
    with pytest.raises(UsageError):
        report.main([])


def test_the_make_target_calls_it():
    lines = (report.Path(report.__file__).parent / "Makefile").read_text()
    assert "report: .venv/installed\n\t$(BIN)/python report.py $(RUN)\n" in lines
