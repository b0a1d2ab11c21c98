"""instrument.py: what a language model proposes never changes a program, is never paid early, and never brings in the token."""

import ast
import importlib
import random
import re
import textwrap
from pathlib import Path

import pytest
from test_instrument import PIPELINE, SNIPPETS, run

from demonstrations import sample_demonstration
from instrument import (
    MILESTONES,
    PLACEHOLDER,
    instrument,
    instrument_ast,
    marker,
    reached,
    same_program,
    strip_markers,
)
from lm_instrument import EXAMPLE
from prompts import extract_program
from rollout import as_logged
from sandbox import Sandbox
from tasks import find_task

TOKEN = "0123456789abcdef"
PRINTS = {milestone: marker(milestone, PLACEHOLDER) for milestone in MILESTONES}

# line by line, with the milestones that the syntax tree has after it
LINES = [
    ('"""Doc."""', ""), ("import pandas as pd", "IMPORTS_DONE"), ("import sys", "IMPORTS_DONE"),
    ('train = pd.read_csv("train.csv")  # data', "DATA_LOADED"), ("print(train.shape)", ""), ("def unused(x=1):", ""),
    ("    y = x", ""), ("    return y", ""), ("try:", ""), ('    X = train[["a"]].fillna(0)', "FEATURES_BUILT"),
    ("    width = 1", ""), ("except KeyError:", ""), ("    X = None", ""), ("model = Ridge()", "MODEL_BUILT"),
    ("for i in 1, 2:", ""), ("    model.fit(X, i)", ""), ('"trained"', ""), ("p = model.predict(X)", "PREDICTION_DONE"),
    ("if p is None:", ""), ("    sys.exit(1)", ""), ("n = 1", ""), ('p.to_csv("submission.csv")', "SUBMISSION_SAVED"),
    ("n = 2", ""),
]  # fmt: skip
PROGRAM = "".join(line + "\n" for line, _ in LINES)


def proposal(moves=(), drop=(), extra=()):
    """PROGRAM with its markers, some moved: behind another line, given by its text, or by its text and another indent."""
    homes = {"IMPORTS_DONE": "import sys", "TRAINING_COMPLETE": ("    model.fit(X, i)", "")}
    homes |= {step: line for line, step in LINES if step and step not in homes} | dict(moves)
    places = [(home, step) for step, home in homes.items() if step not in drop] + list(extra)
    lines = []
    for line, _ in LINES:
        own = line[: len(line) - len(line.lstrip())]
        homes_here = [((home, own) if isinstance(home, str) else home, step) for home, step in places]
        lines += [line, *(indent + PRINTS[step] for (text, indent), step in homes_here if text == line)]
    return "\n".join(lines) + "\n"


DATA, FEATURES, SAVED, TRAINED = (
    PRINTS[step] for step in ("DATA_LOADED", "FEATURES_BUILT", "SUBMISSION_SAVED", "TRAINING_COMPLETE")
)
NO_DATA, NO_FEATURES = proposal(drop=["DATA_LOADED"]), proposal(drop=["FEATURES_BUILT"])
ACCEPTED = {
    "where the syntax tree has them": proposal(),
    "later, after a print": proposal({"DATA_LOADED": "print(train.shape)"}),
    "after a function": proposal({"DATA_LOADED": ("    return y", "")}),
    "later in a try": proposal({"FEATURES_BUILT": "    width = 1"}),
    "after an expression": proposal({"TRAINING_COMPLETE": '"trained"'}),
    "comments gone": proposal().replace("  # data", ""),
    "comments and lines added": "# instrumented\n\n" + proposal().replace("n = 2", "n =  2  # end"),
    "an encoding declared": "# coding: utf-8\n" + proposal(),
    "written anew": ast.unparse(ast.parse(proposal())),
    "at the end": proposal({"SUBMISSION_SAVED": "n = 2"}),
}
MISPLACED = {
    "unchanged": PROGRAM,
    "before its step": proposal({"DATA_LOADED": "import sys"}),
    "after the docstring": proposal({"DATA_LOADED": '"""Doc."""'}),
    "one missing": proposal(drop=["MODEL_BUILT"]),
    "one twice": proposal(extra=[("print(train.shape)", "DATA_LOADED")]),
    "all at the end": proposal(dict.fromkeys(MILESTONES, "n = 2")),
    "behind the end of the next step": proposal({"DATA_LOADED": "model = Ridge()"}),
    "in a loop": proposal({"TRAINING_COMPLETE": "    model.fit(X, i)"}),
    "in a function that nobody calls": proposal({"DATA_LOADED": "    y = x"}),
    "after a return": proposal({"DATA_LOADED": "    return y"}),
    "in an except": proposal({"FEATURES_BUILT": "    X = None"}),
    "after the try, whose step may have failed": proposal({"FEATURES_BUILT": ("    X = None", "")}),
    "behind what may exit": proposal({"PREDICTION_DONE": "n = 1"}),
}
CHANGED = {
    "empty": "",
    "no Python": "x = (",
    "before a docstring": DATA + "\n" + NO_DATA,
    "in a finally of its own": NO_FEATURES.replace("    X = None", f"    X = None\nfinally:\n    {FEATURES}"),
    "in an else of its own": NO_FEATURES.replace("    X = None", f"    X = None\nelse:\n    {FEATURES}"),
    "in an else of the loop": proposal().replace("\n" + TRAINED, "\nelse:\n    " + TRAINED),
    "in an else of an if": proposal().replace("    sys.exit(1)", f"    sys.exit(1)\nelse:\n    {DATA}"),
    "in `if False`": proposal(drop=["SUBMISSION_SAVED"]) + f"if False:\n    {SAVED}\n",
    "in a string": proposal().replace(DATA, repr(DATA)),
    "in an f-string": proposal().replace(DATA, f"f'''{{{DATA}}}'''"),
    "in a print": proposal().replace(DATA, f"print({DATA})"),
    "in a lambda": proposal().replace(DATA, f"(lambda: {DATA})()"),
    "in a default argument": NO_DATA.replace("x=1", f"x={DATA}"),
    "in a decorator": NO_DATA.replace("def unused", f"@{DATA}\ndef unused"),
    "assigned": proposal().replace(DATA, "n = " + DATA),
    "with more arguments": proposal().replace(DATA, DATA[:-1] + ", end='')"),
    "as a print": proposal().replace(DATA, f"print('{PLACEHOLDER} DATA_LOADED', file=sys.stderr)"),
    "for another file": proposal().replace(DATA, DATA.replace("(1,", "(2,")),
    "of another token": proposal().replace(DATA, DATA.replace(PLACEHOLDER, "other")),
    "of a step that there is not": proposal().replace("DATA_LOADED", "WON"),
    "a statement dropped": proposal().replace("n = 1\n", ""),
    "a statement added": proposal() + "n = 3\n",
    "a constant changed": proposal().replace("fillna(0)", "fillna(0.0)"),
    "the docstring changed": proposal().replace("Doc", "doc"),
    "the docstring gone": proposal().replace('"""Doc."""\n', ""),
    "another import": proposal().replace("import sys", "import os, sys"),
    "a future": proposal().replace("import pandas", "from __future__ import annotations\nimport pandas"),
    "a mistake corrected": proposal().replace("import sys", "import sys\nfrom sklearn.linear_model import Ridge"),
    "another encoding": "# coding: latin-1\n" + proposal(),
}


MARKER = rf'(?:(?:\r\n|\r|\n)[ \t]*)?(?:; )?__import__\("os"\)\.write\(1, b"\\n{TOKEN} (\w+)\\n"\)'


def plain(instrumented: str) -> str:
    """Remove markers from the text, as text."""
    return re.sub(MARKER, "", instrumented)


def offsets(instrumented: str) -> dict[str, list[int]]:
    """How many characters of the author's are before each milestone's markers."""
    parts = re.split(MARKER, instrumented)
    found, before = {}, 0
    for text, step in zip(parts[::2], [*parts[1::2], None], strict=True):
        before += len(text)
        if step:
            found.setdefault(step, []).append(before)
    return found


def check_accepted(program, instrumented):
    """The author's text is untouched, and each milestone is where the syntax tree has it or later."""
    assert plain(instrumented) == program
    by_tree, by_model = offsets(instrument_ast(program, TOKEN)), offsets(instrumented)
    assert {step: len(at) for step, at in by_tree.items()} == {step: len(at) for step, at in by_model.items()}
    assert all(late >= due for step in by_tree for late, due in zip(by_model[step], by_tree[step], strict=True))


@pytest.mark.parametrize("name", ACCEPTED)
def test_places_that_pay_no_more_are_taken_over_into_the_authors_text(name):
    instrumented, accepted = instrument(PROGRAM, TOKEN, ACCEPTED[name])
    assert accepted and PLACEHOLDER not in instrumented
    check_accepted(PROGRAM, instrumented)


@pytest.mark.parametrize("name", [*MISPLACED, *CHANGED])
def test_any_other_proposal_leaves_it_to_the_syntax_tree(name):
    answer = MISPLACED.get(name) or CHANGED[name]
    assert same_program(PROGRAM, answer, PLACEHOLDER) == (name in MISPLACED)
    assert instrument(PROGRAM, TOKEN, answer) == (instrument_ast(PROGRAM, TOKEN), False)


def test_exclusive_branches_have_a_print_each():
    program = "if x:\n    df = pd.read_csv('a')\n    n = 1\nelse:\n    df = pd.read_csv('b')\nm = 2\n"
    both = program.replace("n = 1", f"n = 1\n    {DATA}").replace("('b')", f"('b'); {DATA}")
    instrumented, accepted = instrument(program, TOKEN, both)
    assert accepted and instrumented.count("DATA_LOADED") == 2
    for wrong in (program + DATA, both + DATA, program.replace("n = 1", f"n = 1\n    {DATA}")):
        assert not instrument(program, TOKEN, wrong)[1]


@pytest.mark.parametrize(
    "statement",
    ["import os as o", "o.close(1)", "def __import__(n): pass", "import json as __import__", "exit()", "own()", "df.own()",
     "sys.stdout = None", "del __builtins__", "from sys import exit as e", "raise ValueError", "open(1, 'w')",
     "from os.path import join", "if x:\n    quit()", "class A:\n    n = own()"],
)  # fmt: skip
def test_no_print_slides_over_what_may_keep_it_from_printing(statement):
    program = f"def own():\n    return 1\ndf = pd.read_csv('a')\n{statement}\n"
    answer = instrument_ast(program, PLACEHOLDER)
    assert answer.count(DATA) == 1 and instrument(program, TOKEN, answer)[1]
    later = answer.replace("; " + DATA, "") + DATA
    assert same_program(program, later, PLACEHOLDER) and not instrument(program, TOKEN, later)[1]


def test_a_program_that_holds_the_placeholder_is_never_given_the_token():
    for own in (DATA, f"print('{PLACEHOLDER} DATA_LOADED')", f"x = '{PLACEHOLDER}'"):
        program = f"import os\n{own}\nx = 1\n"
        for text in (program, instrument_ast(program, PLACEHOLDER)):
            instrumented, _ = instrument(program, TOKEN, text)
            assert TOKEN in instrumented and plain(instrumented) == program


def test_a_program_in_another_encoding_is_left_alone():
    """The bytes that run would be read otherwise than this text: `+AAo-` is a line break in UTF-7."""
    for line in ("# coding: utf-7", "# -*- coding: latin-1 -*-", "#vim: set fileencoding=UTF_16 :", "\r# coding: cp037"):
        program = f"{line}\nimport os\n# +AAo-df = pd.read_csv('a')\n"
        assert instrument(program, TOKEN, instrument_ast(program, PLACEHOLDER)) == (program, False)
    assert instrument("# coding: UTF-8\nimport os\n", TOKEN)[0].count(TOKEN) == 1


# 200 programs


def hostile_programs(monkeypatch) -> list[str]:
    folder = Path(__file__).parent / "hostile"
    monkeypatch.syspath_prepend(str(folder))
    modules = [importlib.import_module(path.stem) for path in sorted(folder.glob("programs_*.py"))]
    return [textwrap.dedent(case.program) for module in modules for case in module.CASES]


def demonstrations(n, mistake_share) -> list[str]:
    names = ("random-pizza", "hello-world", "spooky-author", "leaf-classification")
    rngs = [random.Random(f"{i}/{mistake_share}") for i in range(n)]
    shares = {"improve_share": 0.0, "mistake_share": mistake_share}
    return [
        extract_program(sample_demonstration(find_task(names[i % 4]).SCHEMA, rng, **shares)[1]) for i, rng in enumerate(rngs)
    ]


LOOKALIKES = [
    PIPELINE, PROGRAM, EXAMPLE,
    *(f"import pandas as pd\n{own}\ndf = pd.read_csv('train.csv')\n{own}\nraise ValueError\n" for own in (
        DATA, "print('DATA_LOADED')", f"print('{PLACEHOLDER} DATA_LOADED')", f"print('\\n{PLACEHOLDER} DATA_LOADED\\n')",
        "import os; os.write(1, b'\\nTOKEN DATA_LOADED\\n')", f'"""{DATA}"""', "print(open(__file__).read())",
    )),
]  # fmt: skip


def mutate(text: str, rng: random.Random) -> str:
    """One random edit, such as a model may make."""
    lines = text.splitlines() or [""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    indent = re.match(r"[ \t]*", lines[rng.choice([i, max(0, i - 1)])])[0]
    ours = [k for k, line in enumerate(lines) if PLACEHOLDER in line]
    some = rng.choice(list(PRINTS.values()))
    edit = rng.randrange(16)
    if edit == 0:
        del lines[i]
    elif edit == 1:
        lines[i], lines[j] = lines[j], lines[i]
    elif edit == 2:
        lines.insert(i, indent + some)
    elif edit == 3 and ours:  # a marker's line, or the statement that it follows, moves
        lines.insert(j, lines.pop(rng.choice(ours)))
    elif edit in (4, 5, 6) and ours:  # a marker moves, mostly a little
        k = rng.choice(ours)
        step = re.search(rf"{PLACEHOLDER} (\w+)", lines[k])[1]
        lines[k] = lines[k].replace("; " + PRINTS.get(step, "?"), "").replace(PRINTS.get(step, "?"), "pass")
        lines.insert(min(len(lines), k + rng.randint(-2, 4)), indent + PRINTS.get(step, "?"))
    elif edit == 7 and ours:
        lines.append(lines[rng.choice(ours)].split("; ")[-1])
    elif edit == 8:
        lines[i] = re.sub(r"\d+", lambda m: str(int(m[0]) + 1), lines[i], count=1)
    elif edit == 9:
        lines.insert(i, indent + rng.choice(["import os", "print('x')", "pass", "x = 1", "# note", "", "return", "else:"]))
    elif edit == 10:
        lines[i] = re.sub(r"#.*", "", lines[i])
    elif edit == 11:
        lines[i] = lines[i].replace("'", '"')
    elif edit == 12:
        lines[i] += rng.choice(["  # done", ";", "  ", f"; {some}", f"  # {some}"])
    elif edit == 13:
        lines.insert(0, rng.choice(["# coding: latin-1", '"""doc"""', "", "from __future__ import annotations", some]))
    elif edit == 14:
        lines.insert(i, f"{indent}if False:\n{indent}    {some}")
    elif edit == 15:
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice("\t ;#\n(0a") + text[at + rng.randint(0, 1) :]
    return "\n".join(lines) + "\n"


def test_200_programs_and_no_accepted_answer_changes_one(monkeypatch):
    """Valid, failing, hostile ones, and such as print what looks like a milestone; honest and mistaken answers to each."""
    programs = demonstrations(36, 0.0) + demonstrations(36, 1.0) + LOOKALIKES + [program for program, _ in SNIPPETS.values()]
    hostile = hostile_programs(monkeypatch)
    programs = list(dict.fromkeys(programs + random.Random(0).sample(hostile, 60)))
    assert len(programs) >= 200
    honest = mistaken = answers = 0
    for i, program in enumerate(programs):
        rng, answer = random.Random(i), instrument_ast(program, PLACEHOLDER)
        for k in range(9):
            text = answer
            for _ in range(rng.randint(1, 3) if k else 0):
                text = mutate(text, rng)
            instrumented, accepted = instrument(program, TOKEN, text)
            honest, mistaken, answers = honest + (accepted and k == 0), mistaken + (accepted and k > 0), answers + 1
            if accepted:
                check_accepted(program, instrumented)
            else:
                assert instrumented == instrument_ast(program, TOKEN)
    print(f"{len(programs)} programs, {answers} answers; accepted: {honest} honest, {mistaken} edited")
    assert honest > 150 and mistaken > 150


@pytest.mark.parametrize("name", SNIPPETS)
def test_an_accepted_answer_runs_like_the_program_and_is_paid_no_more_than_the_syntax_tree(name, capfd):
    program, _ = SNIPPETS[name]
    due, rng = reached(run(instrument_ast(program, TOKEN), capfd)[0], TOKEN), random.Random(name)
    output, *rest = run(program, capfd)
    seen = set()
    for _ in range(30):
        instrumented, accepted = instrument(program, TOKEN, mutate(instrument_ast(program, PLACEHOLDER), rng))
        if accepted and instrumented not in seen:
            seen.add(instrumented)
            instrumented_output, *instrumented_rest = run(instrumented, capfd)
            assert set(reached(instrumented_output, TOKEN)) <= set(due)
            assert [strip_markers(instrumented_output, TOKEN), *instrumented_rest] == [output, *rest]


def test_in_the_sandbox_accepted_programs_print_and_submit_the_same(pizza):
    rng, compared = random.Random(1), 0
    shares = {"improve_share": 0.0, "mistake_share": 0.4}
    with Sandbox(1) as sandbox:
        for i in range(8):
            program = extract_program(sample_demonstration(pizza.schema, random.Random(i), **shares)[1])
            answer = instrument_ast(program, PLACEHOLDER)
            tries = (instrument(program, TOKEN, mutate(answer, rng)) for _ in range(60))
            other = next((text for text, accepted in tries if accepted and text != instrument_ast(program, TOKEN)), None)
            if other is None:
                continue
            plainly, instrumented = (
                sandbox.run(text, pizza.public_dir, time_limit_s=60, seed=i) for text in (program, other)
            )
            assert (plainly.status, plainly.exit_code, plainly.submission) == (
                instrumented.status, instrumented.exit_code, instrumented.submission)  # fmt: skip
            logged = as_logged(instrumented, TOKEN)
            assert logged.stdout == plainly.stdout and TOKEN not in logged.stderr
            assert reached(instrumented.stdout, TOKEN) and not reached(plainly.stdout, TOKEN)
            compared += 1
    assert compared >= 4
