"""instrument.py: programs keep their behaviour, milestones tell what was completed, hostile text does no harm."""

import io
import random
import re
import time

import pytest

from instrument import (
    MILESTONES,
    instrument,
    instrument_ast,
    marker,
    new_token,
    reached,
    same_program,
    strip_markers,
)
from steps import find_steps

TOKEN = "0123456789abcdef"
LETTERS = dict(zip("IDFMTPS", MILESTONES, strict=True))

PIPELINE = '''"""Predict y."""
from __future__ import annotations
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
train = pd.read_csv("train.csv")
test = pd.read_csv("test.csv")  # no label
vectorizer = TfidfVectorizer()
X = vectorizer.fit_transform(train["text"])
X_test = vectorizer.transform(test["text"])
model = LogisticRegression(C=10)
model.fit(X, train["y"])
print("fitted", end="")
test["y"] = model.predict_proba(X_test)[:, 1]
sample = pd.read_csv("sample_submission.csv")
test[["id", "y"]].to_csv("submission.csv", index=False)
'''

# name: (program, initials of the milestones that its run reaches). pd, model, scaler, ... are Anything.
SNIPPETS = {
    "empty": ("", ""),
    "only a comment": ("# import numpy", ""),
    "only a docstring": ('"""import numpy"""', ""),
    "only a future import": ("from __future__ import annotations", ""),
    "docstring and future import": ('"""doc"""\nfrom __future__ import annotations\nimport os\nprint(__doc__)\n', "I"),
    "import in one line with more": ("import os, sys; import re; print(1)", "I"),
    "imports in two blocks": ("import os\nx = 1\nimport re\ndf = pd.read_csv('a')\nimport json", "ID"),
    "environment between imports": ("import os\nos.environ['Q'] = '1'\nimport re\ndf = pd.read_csv(1 / 0)", "I"),
    "optional import present": ("import os\ntry:\n    import re\nexcept ImportError:\n    re = None\n", "I"),
    "optional import missing": ("import os\ntry:\n    import no_such\nexcept ImportError:\n    no_such = None", "I"),
    "required import missing": ("import os\nimport no_such\ndf = pd.read_csv('a')", ""),
    "trailing semicolon": ("df = pd.read_csv('a');", "D"),
    "trailing comment": ("df = pd.read_csv('a')  # ; print('#')\nprint(3)", "D"),
    "semicolons": ("a = pd.read_csv('a'); b = pd.read_csv('b') ; print(4)", "D"),
    "continuation line": ("df = pd \\\n  .read_csv('a') \\\n  .copy()\nprint(5)", "D"),
    "continuation into a semicolon": ("df = pd.read_csv('a') \\\n; print(6)", "D"),
    "call over lines": ("df = pd.read_csv(\n    'a',\n    # comment\n)\nprint(7)", "D"),
    "multi-line string with code": (
        "s = '''\nimport os\ndf = pd.read_csv('a')\n'''\ndf = pd.read_csv(s)\nprint(s)",
        "D",
    ),
    "string argument over lines": ("df = pd.read_csv('''a\nb''')\nprint(8)", "D"),
    "crlf": (
        "import os\r\ndf = pd.read_csv('''a\r\nb''')\r\nfor i in 1, 2:\r\n    model.fit(i)\r\nprint(9)\r\n",
        "IDT",
    ),
    "carriage returns alone": ("import os\rfor i in 1, 2:\r\tmodel.fit(i)\rprint(10)", "IT"),
    "tabs": ("if 1:\n\tdf = pd.read_csv('a')\n\tfor i in 1, 2:\n\t\tmodel.fit(i)\n\tprint(11)", "DT"),
    "form feed": ("import os\n\f\ndf = pd.read_csv('a\f')\n\f\nprint(12)", "ID"),
    "no newline at the end": ("for i in 1, 2:\n    model.fit(i)", "T"),
    "blank lines at the end": ("for i in 1, 2:\n    model.fit(i)\n\n\n  # end\n\n", "T"),
    "non-ASCII": ("größe = 'ß→漢'; donnée = pd.read_csv('é漢𝒳'); print('é')  # ü\n", "D"),
    "one-line if": ("if 1: df = pd.read_csv('a'); print(13)\nprint(14)", "D"),
    "one-line if else": ("if 0: df = pd.read_csv('a')\nelse: df = pd.read_csv('b')\nprint(15)", "D"),
    "branch that does not run": ("if 0:\n    model.fit(1)\nprint(16)", ""),
    "detour that does not run": ("df = pd.read_csv('a')\nX = df.drop(1)\nif 0:\n    X = X.fillna(0)\nprint(17)", "DF"),
    "one-line for": ("for i in 1, 2: model.fit(i); print(i)  # train\nprint(18)", "T"),
    "one-line while": ("n = 2\nwhile n: model.fit(n); n -= 1", "T"),
    "for else": ("for i in 1, 2:\n    model.fit(i)\nelse:\n    print(19)", "T"),
    "loop cut short by an error": ("for i in 1, 0:\n    model.fit(1 / i)", ""),
    "loop in a loop": ("for i in 1, 2:\n    for j in 1, 2:\n        model.fit(i)\n        p = model.predict(j)", "TP"),
    "blocks that end together": ("if 1:\n    for i in 1, 2:\n        if i:\n            model.fit(i)\nprint(20)", "T"),
    "function main": ("import os\ndef main():\n    df = pd.read_csv('a')\n    1 / 0\n    model.fit(df)\nmain()", "ID"),
    "main guard": (
        "def main():\n    df = pd.read_csv('a')\n    return df\nif __name__ == '__main__':\n    main()",
        "D",
    ),
    "function that returns its step": ("def load(p):\n    return pd.read_csv(p)\ndf = load('a')\nprint(21)", "D"),
    "function called twice": ("def load(p):\n    d = pd.read_csv(p)\n    return d\na = load(1)\nb = load(1 / 0)", ""),
    "function never called": ("def load():\n    return pd.read_csv('a')\nprint(22)", ""),
    "function in a comprehension": ("def f(x):\n    y = model.fit(x)\n    return 1\nprint([f(i) for i in 'abc'])", "T"),
    "one-line function": ("def f(): model.fit(1); print(23)\nf()", "T"),
    "recursion": ("def f(n):\n    model.fit(n)\n    if n:\n        f(n - 1)\nf(3)", "T"),
    "nested functions": ("def f():\n    def g():\n        model.fit(1)\n    g()\n    print(24)\nf()", "T"),
    "generator": ("def rows():\n    yield pd.read_csv('a')\nfor row in rows():\n    print(25)", "D"),
    "docstring of a function": ("def f():\n    'doc'\n    import os\n    print(f.__doc__)\nf()", "I"),
    "class": (
        "class A:\n    'doc'\n    def __init__(self):\n        self.df = pd.read_csv('a')\nprint(A().__doc__)",
        "D",
    ),
    "class with super": (
        "class A:\n    def __init__(self):\n        super().__init__()\n        self.d = pd.read_csv(1)\nA()",
        "D",
    ),
    "class body": ("class A:\n    df = pd.read_csv('a')\nprint(sorted(k for k in vars(A) if k[0] != '_'))", "D"),
    "own model": (
        "class Net:\n    def fit(self, x):\n        return self\n    def predict(self, x):\n        return x\n"
        "net = Net()\nnet.fit(1)\nprint(net.predict(2))",
        "MTP",
    ),
    "decorator": (
        "import functools\n@functools.cache\ndef load():\n    return pd.read_csv('a')\nprint(load() is load())",
        "ID",
    ),
    "try that fails": ("try:\n    df = pd.read_csv(1 / 0)\nexcept ZeroDivisionError:\n    print(26)", ""),
    "try that falls back": (
        "try:\n    a = pd.read_csv(1 / 0)\nexcept ZeroDivisionError:\n    a = pd.read_csv('b')",
        "D",
    ),
    "all in one try": (
        "import os\ntry:\n    import re\n    df = pd.read_csv('a')\n    1 / 0\n    model.fit(1)\nexcept Exception:\n"
        "    print(27)\nelse:\n    print(28)\nfinally:\n    print(29)",
        "ID",
    ),
    "with": ("import warnings\nwith warnings.catch_warnings():\n    model.fit(1)\n    1 / 0", "IT"),
    "with, a file": ("with open('/dev/null') as f:\n    rows = f.read()\nprint(30)", "D"),
    "async": (
        "import asyncio\nasync def main():\n    df = pd.read_csv('a')\n    await asyncio.sleep(0)\n    model.fit(df)\n"
        "asyncio.run(main())",
        "IDT",
    ),
    "lambda": ("load = lambda p: pd.read_csv(p)\nprint(load('a') is None)", "D"),
    "walrus": ("if (df := pd.read_csv('a')) is not None:\n    print(31)", "D"),
    "f-string": ("import os\nprint(f'''{pd.read_csv(\"a\") is None!r:>8}\n{{}}''')", "ID"),
    "match": ("match 2:\n    case 1:\n        model.fit(1)\n    case _:\n        model.fit(2)\nprint(32)", "T"),
    "deep nesting": ("if 1:\n" + "".join(" " * d + "if 1:\n" for d in range(1, 60)) + " " * 60 + "model.fit(1)", "T"),
    "elif chain": ("x = 3\nif x == 1:\n  model.fit(1)\nelif x == 3:\n  model.fit(3)\nelse:\n  model.fit(0)\n", "T"),
    "shadowed print": ("print = None\ndf = pd.read_csv('a')", "D"),
    "own print": ("def print(*a, **k):\n    raise ValueError\ndf = pd.read_csv('a')", "D"),
    "print removed from builtins": (
        "import builtins\nkept = builtins.print\nbuiltins.print = None\nmodel.fit(1)\nbuiltins.print = kept\nprint(33)",
        "IT",
    ),
    "stdout redirected": (
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as s:\n    print(34)\n"
        "    model.fit(1)\nprint(len(s.getvalue()))",
        "IT",
    ),
    "stdout replaced": (
        "import sys\nclass Null:\n    def write(self, text): pass\nsys.stdout = Null()\nmodel.fit(1)",
        "IT",
    ),
    "print without newline": ("import os\nprint('a', end='')\ndf = pd.read_csv('a')\nprint('b', end='')", "ID"),
    "prints every name": ("".join(f"print('{name}')\nprint('x {name}')\n" for name in MILESTONES), ""),
    "exit": ("import sys\ndf = pd.read_csv('a')\nsys.exit(3)\nmodel.fit(1)", "ID"),
    "chained statement": ("p = LogisticRegression().fit(scaler.fit_transform(X), y).predict(X)", "FMTP"),
    "scaler is no model": ("scaler = StandardScaler()\nscaler.fit(X)\nX = scaler.transform(X)", "F"),
    "scaler by its use": ("scaler.fit(X)\nX = scaler.transform(X)", "F"),
    "torch loop": (
        "net = Sequential(1)\nfor e in range(2):\n    out = net(X)\n    out.mean().backward()\np = net(X)",
        "MTP",
    ),
    "lightgbm.train": ("booster = lgb.train({}, X)\np = booster.predict(X)", "MTP"),
    "other file saved": ("df.to_csv('oof.csv')\nopen('/dev/null', 'w').close()", ""),
    "unknown name of file": ("OUT = 'submission.csv'\ndf.to_csv(OUT, index=False)", "S"),
}


class Anything:
    """Stands for any library object: every attribute, call, item and arithmetic gives Anything."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    __getitem__ = __add__ = __call__


def run(program, capfd):
    """Execute a program; return (stdout, its end, the plain values it leaves)."""
    names = ["pd", "model", "scaler", "X", "y", "df", "lgb", "LogisticRegression", "StandardScaler", "Sequential"]
    scope = {"__name__": "__main__", **dict.fromkeys(names, Anything())}
    capfd.readouterr()
    end = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True))
        try:
            exec(compile(program, "program.py", "exec"), scope)
        except BaseException as error:
            end = repr(error)
    values = {name: v for name, v in scope.items() if isinstance(v, (int, str, list, dict)) and name != "__builtins__"}
    return capfd.readouterr().out, end, values


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_instrumented_program_is_the_same_program(name):
    program, _ = SNIPPETS[name]
    instrumented = instrument_ast(program, TOKEN)
    assert same_program(program, instrumented, TOKEN)
    if not ("\r" in program and "\r\n" not in program):
        stripped = re.sub(r"(\r?\n[ \t]*)?(; )?__import__\(\"os\"\).write\(1, b\"\\n\w+ \w+\\n\"\)", "", instrumented)
        assert stripped == program  # comments, spaces and line ends are the author's


@pytest.mark.parametrize("name", SNIPPETS)
def test_behaviour_is_kept_and_milestones_are_those_completed(name, capfd):
    program, initials = SNIPPETS[name]
    output, end, values = run(program, capfd)
    instrumented_output, *rest = run(instrument_ast(program, TOKEN), capfd)
    assert reached(instrumented_output, TOKEN) == [LETTERS[letter] for letter in initials]
    assert strip_markers(instrumented_output, TOKEN) == output
    assert rest == [end, values]
    assert len(instrumented_output) < len(output) + 400  # no print repeats


@pytest.fixture
def data(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("text,y\n" + "".join(f"word{i % 3} more,{i % 2}\n" for i in range(12)))
    (tmp_path / "test.csv").write_text("id,text\n1,word1 more\n2,word2\n")
    (tmp_path / "sample_submission.csv").write_text("id,y\n1,0\n2,0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pipeline_reaches_all_seven_in_order(data, capfd):
    output, end, _ = run(instrument_ast(PIPELINE, TOKEN), capfd)
    assert end == ""
    assert re.findall(rf"^{TOKEN} (\w+)$", output, re.MULTILINE) == list(MILESTONES)
    assert strip_markers(output, TOKEN) == "fitted"
    assert (data / "submission.csv").read_text().startswith("id,y\n1,0.")


@pytest.mark.parametrize(
    ("before", "count"),
    [("import pandas", 0), ("test =", 1), ("X_test", 2), ("model =", 3), ("model.fit", 4), ("print", 5), ("test[[", 6)],
)
def test_a_failure_in_the_middle_keeps_exactly_the_milestones_before_it(data, capfd, before, count):
    failing = PIPELINE.replace(f"\n{before}", f"\n1 / 0\n{before}", 1)
    output, end, _ = run(instrument_ast(failing, TOKEN), capfd)
    assert "ZeroDivisionError" in end
    assert reached(output, TOKEN) == list(MILESTONES[:count])


def test_line_numbers_of_a_straight_program_are_kept():
    assert instrument_ast(PIPELINE, TOKEN).count("\n") == PIPELINE.count("\n")


def test_a_sample_submission_read_at_the_end_is_not_the_data():
    lines = instrument_ast(PIPELINE, TOKEN).splitlines()
    assert [line.split(" ")[0] for line in lines if "DATA_LOADED" in line] == ["test"]


def test_reached_wants_whole_lines_with_the_token():
    assert reached(f"x\n{TOKEN} DATA_LOADED\r\n{TOKEN} IMPORTS_DONE\n{TOKEN} DATA_LOADED", TOKEN) == list(
        MILESTONES[:2]
    )
    assert reached(f"  {marker('DATA_LOADED', TOKEN)}\n", TOKEN) == []  # a traceback that quotes the source
    assert reached(f"{TOKEN} DATA_LOADED {TOKEN} X\n {TOKEN} DATA_LOADED\n{TOKEN} OTHER\n", TOKEN) == []
    assert reached(f"{TOKEN} DATA_LOADED\n", new_token()) == []
    assert reached("DATA_LOADED\n" * 3, TOKEN) == []


def test_tokens_differ_and_repeat_for_a_seed():
    assert len({new_token() for _ in range(100)}) == 100
    assert new_token("secret 7") == new_token("secret 7") != new_token("secret 8")
    assert re.fullmatch("[0-9a-f]{16}", new_token("secret 7")) and re.fullmatch("[0-9a-f]{16}", new_token())


def test_a_token_that_could_break_out_of_the_print_is_refused():
    with pytest.raises(ValueError, match="new_token"):
        instrument_ast("import os", 'a")')


@pytest.mark.parametrize(
    "text", ["x = (", "\0", "import os\0", "def f(:", "\ud800", "  x", "return 1", "﻿import os", "1 +"]
)
def test_what_does_not_compile_comes_back_unchanged(text):
    assert instrument_ast(text, TOKEN) in (text, f"{text}; {marker('IMPORTS_DONE', TOKEN)}")
    assert instrument(text, TOKEN) == instrument(text, TOKEN, text) == (instrument_ast(text, TOKEN), False)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 100_000 + "1",
        "(" * 5_000,
        "1" + "+1" * 20_000,
        "a" + ".b" * 20_000,
        "f" + "(1)" * 20_000,
        "if x:\n pass\n" + "elif y: pass\n" * 3_000,
        "[" * 150 + "]" * 150,
        "x = " * 3_000 + "1",
    ],
)
def test_nesting_that_python_cannot_follow_does_no_harm(text):
    start_s = time.perf_counter()
    assert instrument_ast(text, TOKEN) == text
    assert time.perf_counter() - start_s < 5


def test_any_text_gives_a_program_that_is_the_same():
    rng = random.Random(0)
    sources = [PIPELINE, *(program for program, _ in SNIPPETS.values() if len(program) > 20)]
    changed = 0
    for _ in range(400):
        text = rng.choice(sources)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text) + 1)
            piece = rng.choice(
                ["\n", "\r", "\f", "\\\n", ";", "#", "'''", "\t", " ", ":", "é", "\0", ")", "else: x\n", ""]
            )
            text = text[:at] + piece + text[at + rng.randint(0, 2) :]
        instrumented = instrument_ast(text, TOKEN)
        assert instrumented == text or same_program(text, instrumented, TOKEN)
        changed += instrumented != text
    assert changed > 40


PROGRAM = (
    '"""doc"""\nfrom __future__ import annotations\nimport os\ndef f(x):\n    return x\nfor i in 1, 2:\n    f(i)\n'
)
PRINT = marker("DATA_LOADED", TOKEN)


@pytest.mark.parametrize(
    "proposal",
    [
        PROGRAM,
        f"{PROGRAM}{PRINT}\n",
        PROGRAM.replace("import os\n", f"import os;{PRINT} # loaded\n\n"),
        PROGRAM.replace("    f(i)", f"    f( i )\n    {PRINT}"),
        f'{PROGRAM}__import__("os").write(\n  1, {PRINT[26:]}',
    ],
)
def test_only_prints_were_added(proposal):
    assert same_program(PROGRAM, proposal, TOKEN)


@pytest.mark.parametrize(
    "proposal",
    [
        "",
        "x = (",
        f"{PRINT}\n{PROGRAM}",
        PROGRAM.replace("import os\n", ""),
        PROGRAM.replace("    return", f"    {PRINT}\n    return"),
        PROGRAM.replace("f(i)", "f(2)"),
        PROGRAM.replace("from", f"{PRINT}\nfrom"),
        PROGRAM.replace("    f(i)", f"    {PRINT}"),
        f"{PROGRAM}{marker('DATA_LOADED', 'other')}\n",
        f"{PROGRAM}{marker('WON', TOKEN)}\n",
        f"{PROGRAM}print('{TOKEN} DATA_LOADED')",
        f"{PROGRAM}x = {PRINT}\n",
        PROGRAM.replace("doc", "dog"),
        f"{PROGRAM}{PRINT[:-1]}, 1)\n",
        f"{PROGRAM}else:\n    {PRINT}\n",  # of the loop: gone with its markers
    ],
)
def test_anything_else_was_changed(proposal):
    assert not same_program(PROGRAM, proposal, TOKEN)


def test_find_steps_names_what_a_program_does():
    assert find_steps(PIPELINE) == set(MILESTONES)
    assert find_steps("def main():\n    model.fit(X)\n") == find_steps("x = (") == set()
    assert find_steps("def main():\n    model.fit(X)\nmain()") == {"TRAINING_COMPLETE"}


def test_a_literal_too_long_for_decimal_digits_is_run_as_it_is():
    program = "x = 0x" + "f" * 5000 + "\nimport os\nopen('a', 0x" + "f" * 5000 + ")\n"
    assert instrument(program, "ab")[0] == program and find_steps(program) <= set(MILESTONES)


def test_a_long_chain_of_branches_takes_no_square_of_its_length():
    def seconds(n: int) -> float:
        chain = "".join(f"elif x == {i}:\n    y = df[{i}]\n" for i in range(n))
        started = time.process_time()
        instrument_ast(f"import pandas as pd\ndf = pd.read_csv('a')\nif x == -1:\n    pass\n{chain}", TOKEN)
        return time.process_time() - started

    assert min(seconds(240) for _ in range(3)) < 8 * min(seconds(60) for _ in range(3))  # linear: 4, square: 16
