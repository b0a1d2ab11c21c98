"""Demonstrations: solution programs written by a generator from a task's schema, mistakes included.

recipes.py draws what a program does; `render_program` writes it down. A program is four blocks of lines: load, features,
train, submit. One schema and one `random.Random` give the same text everywhere.
"""

import random
import re
from dataclasses import replace

from prompts import Attempt, find_runs, quoted
from recipes import IMPORTS, MISTAKES, MODULES, NAMES, Recipe, improve_recipe, sample_recipe
from tasks import Schema

SCORING = {  # what a validation prints
    "binary": "roc_auc", "span": "roc_auc", "probabilities": "neg_log_loss", "label": "accuracy", "number": "r2",
}  # fmt: skip


def render_response(recipe: Recipe, schema: Schema, rng: random.Random) -> str:
    """Write the whole answer: one line of plan, then the program in a fenced block."""
    f = recipe.features
    parts = (
        (recipe.scaler or "plain", "numbers", f.numeric or f.derived), (recipe.vectorizer, "text", f.text),
        (recipe.vectorizer, "words", f.words), ("OneHotEncoder", "categories", f.categories), ("ord", "codes", f.codes),
        (recipe.scaler or "plain", "images", f.look), ("mean", "atoms", f.places),
    )  # fmt: skip
    features = " and ".join(f"{tool.split('(')[0]} {what}" for tool, what, used in parts if used)
    models = " and ".join(model.split("(")[0] for model in recipe.models)
    return f"Plan: {features} with {models}.\n```python\n{render_program(recipe, schema, rng)}```"


def render_program(recipe: Recipe, schema: Schema, rng: random.Random) -> str:
    """Write the program of a recipe. `rng` only chooses where its mistake goes."""
    blocks = [
        ("load", _load(recipe, schema)),
        ("features", _word_rows(recipe, schema) if recipe.features.words else _features(recipe, schema)),
        ("train", _train(recipe, schema)),
        ("submit", _submit(recipe, schema)),
    ]
    imports = dict(IMPORTS)
    if recipe.modules:
        imports |= {module: f"from sklearn import {module}" for module in MODULES.values()}
        imports = {name: statement for name, statement in imports.items() if name not in MODULES}
        blocks = [(title, [_qualified(line) for line in lines]) for title, lines in blocks]
    missing = _mentioned("\n".join(line for _, lines in blocks for line in lines), imports)
    dropped = rng.choice(missing) if recipe.mistake == "import" else ""
    missing = [name for name in missing if name != dropped]
    written = []
    if not recipe.notebook:
        written, missing = [imports[name] for name in missing], []
    for title, lines in blocks:
        written += [f"# {title}"] if recipe.comments else []
        for line in lines:
            needed = [name for name in missing if name in _mentioned(line, imports)]
            missing = [name for name in missing if name not in needed]
            written += [*(imports[name] for name in needed), line]
    return _break("\n".join(written) + "\n", recipe, rng)


def _mentioned(code: str, imports: dict[str, str]) -> list[str]:
    return [name for name in imports if re.search(rf"\b{name}\b", code)]


def _qualified(code: str) -> str:
    return re.sub("|".join(rf"\b{name}\b" for name in MODULES), lambda m: f"{MODULES[m[0]]}.{m[0]}", code)


# load


def _load(r: Recipe, schema: Schema) -> list[str]:
    train, test, *_ = r.names
    test_file = "test_data." + schema.file_format if r.mistake == "file" else schema.test_file
    filled = '.fillna("")' if r.features.words else ""
    return [
        f"{train} = pd.read_{schema.file_format}({quoted(schema.train_file)}){filled}",
        f"{test} = pd.read_{schema.file_format}({quoted(test_file)}){filled}",
        _target(r, schema),
    ]


def _target(r: Recipe, schema: Schema) -> str:
    train, _, _, _, y, *_ = r.names
    if schema.problem == "span":  # of each word: is it in the span?
        text, span = (f"{train}[{quoted(c)}]" for c in (schema.text[0], schema.target_columns[0]))
        return f"{y} = [w in s.split() for t, s in zip({text}, {span}) for w in t.split()]"
    labels = schema.label_columns
    target = f"{train}[{quoted(labels[0])}]" if len(labels) == 1 else f"{train}[{_list(labels)}]"
    if schema.problem == "binary":
        return f"{y} = {target}.astype(int)"
    if len(labels) > 1 and not r.regress:
        return f"{y} = {target}.idxmax(axis=1)"
    return f"{y} = np.log1p({target})" if r.log_target else f"{y} = {target}"


# features


def _features(r: Recipe, schema: Schema) -> list[str]:
    """Build one table of numbers per part, and put the parts side by side."""
    _, _, x, x_test, *_ = r.names
    f = r.features
    writers = (
        ("N", f.numeric or f.derived, _numbers), ("T", f.text, _text), ("C", f.categories, _categories), ("K", f.codes, _codes),
        ("I", f.look, _images), ("G", f.places, _atoms),
    )  # fmt: skip
    parts = [(part, write) for part, used, write in writers if used]
    if len(parts) == 1:
        lines = parts[0][1](r, schema, x, x_test)
    else:
        lines = [line for part, write in parts for line in write(r, schema, part, f"{part}_test")]
        names = [part for part, _ in parts]
        lines += [f"{x} = np.hstack([{', '.join(names)}])"]
        lines += [f"{x_test} = np.hstack([{', '.join(f'{name}_test' for name in names)}])"]
    return lines if "N" in [part for part, _ in parts] or f.text else lines + _scale(r, x, x_test)


def _scale(r: Recipe, out: str, out_test: str) -> list[str]:
    if not r.scaler:
        return []
    return [f"scaler = {r.scaler}", f"{out} = scaler.fit_transform({out})", f"{out_test} = scaler.transform({out_test})"]


def _numbers(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    f = r.features
    lines = []
    if f.derived:
        assignments = [f"    d[{quoted(name)}] = {expression}" for name, expression in f.derived]
        bind = [f"    {f.bind}"] if f.bind else []
        lines.append("\n".join([f"for d in ({train}, {test}):", *bind, *assignments]))
    if r.select and r.mistake != "column":
        lines.append(f'cols = list({test}.select_dtypes("number").columns.difference([{quoted(schema.id_column)}]))')
    else:
        columns = [*f.numeric, *(name for name, _ in f.derived)]
        if r.mistake == "column":
            columns[-1] += "_total"
        lines.append(f"cols = {_list(columns)}")
    value = "np.log1p(d[cols].clip(lower=0))" if f.log else "d[cols].fillna(0)"
    if r.helper:
        lines += [f"def numbers(d):\n    return {value}", f"{out} = numbers({train})", f"{out_test} = numbers({test})"]
    else:
        lines += [f"{out} = {value.replace('d[', train + '[')}", f"{out_test} = {value.replace('d[', test + '[')}"]
    return lines + _scale(r, out, out_test)


def _list(columns) -> str:
    """Return an expression for a list of columns; runs of numbered ones are counted, not listed."""
    singles, counted = [], []
    for run in find_runs(tuple(columns)):
        if len(run) == 1:
            singles.append(quoted(run[0]))
            continue
        prefix, first = re.fullmatch(r"(.*?)([0-9]+)", run[0]).groups()
        form = f":0{len(first)}" if first.startswith("0") and len(first) > 1 else ""
        counted.append(f'[f"{prefix}{{i{form}}}" for i in range({int(first)}, {int(first) + len(run)})]')
    return " + ".join([*([f"[{', '.join(singles)}]"] if singles or not counted else []), *counted])


def _text(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    f = r.features
    if f.combine and r.mistake != "transform":
        a, b = (f"vec.transform(d[{quoted(c)}]).toarray()" for c in f.text)
        value = f"abs({a} - {b})" if f.combine == "abs" else f"{a} {f.combine} {b}"
        joined = ' + " " + '.join(f"{train}[{quoted(c)}]" for c in f.text)
        return [
            f"vec = {r.vectorizer}", f"vec.fit({joined})", f"pair = lambda d: {value}", f"{out} = pair({train})",
            f"{out_test} = pair({test})",
        ]  # fmt: skip
    text = ' + " " + '.join(f"d[{quoted(c)}]" for c in f.text)
    call = "fit_transform" if r.mistake == "transform" else "transform"
    return [
        f"vec = {r.vectorizer}",
        f"text = lambda d: {text}",
        f"{out} = vec.fit_transform(text({train})).toarray()",
        f"{out_test} = vec.{call}(text({test})).toarray()",
    ]


def _categories(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    columns = _list(r.features.categories)
    return [
        'enc = OneHotEncoder(handle_unknown="ignore", sparse_output=False)',
        f"{out} = enc.fit_transform({train}[{columns}])",
        f"{out_test} = enc.transform({test}[{columns}])",
    ]


def _codes(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    letters = " + ".join(f"d[{quoted(c)}]" for c in r.features.codes)
    return [
        f"letters = lambda d: np.array([[ord(c) for c in code] for code in {letters}])",
        f"{out} = letters({train})",
        f"{out_test} = letters({test})",
    ]


def _images(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    side = r.features.side
    middle = f"    im = im[{side // 5}:-{side // 5}, {side // 5}:-{side // 5}]\n" if r.features.crop else ""
    look = (
        "def look(path):\n"
        f'    im = np.asarray(Image.open(path).convert("RGB").resize(({side}, {side}))) / 128\n'
        f"{middle}    return {r.features.look}"
    )
    return [look, *_of_each_file(r, schema, "look", schema.image_files, out, out_test)]


def _atoms(r: Recipe, schema: Schema, out: str, out_test: str) -> list[str]:
    if r.features.metals:
        table = '    rows = pd.read_csv(path, sep=" ", skiprows=6, header=None)\n'
        xyz = f'{table}    xyz = rows[rows[4] != "O"][[1, 2, 3]].values\n'
    else:
        xyz = "    xyz = np.loadtxt(path, usecols=(1, 2, 3))[3:]\n"  # after three lattice vectors
    places = f"def places(path):\n{xyz}    return {r.features.places}"
    return [places, *_of_each_file(r, schema, "places", schema.geometry_files, out, out_test)]


def _of_each_file(r: Recipe, schema: Schema, function: str, templates, out: str, out_test: str) -> list[str]:
    """Call a function on the file of each row of train and test."""
    lines = []
    for name, table, template in zip((out, out_test), r.names, templates, strict=False):
        path = template.rsplit(".", 1)[0] + ".png" if r.mistake == "path" else template
        path = "f" + quoted(path.replace("{" + schema.id_column + "}", "{i}"))
        lines.append(f"{name} = np.array([{function}({path}) for i in {table}[{quoted(schema.id_column)}]])")
    return lines


def _word_rows(r: Recipe, schema: Schema) -> list[str]:
    """A row per word of a text: what it is known by, counted."""
    train, test, x, x_test, *_ = r.names
    text, kind = (f"d[{quoted(c)}]" for c in (schema.text[0], schema.categorical[0]))
    known = " ".join(r.features.words)
    call = "fit_transform" if r.mistake == "transform" else "transform"
    words = (
        "def words(d):\n"
        "    rows = []\n"
        f"    for t, s in zip({text}, {kind}):\n"
        '        w = ["", *t.lower().split(), ""]\n'
        f'        rows += [f"{known}" for i in range(1, len(w) - 1)]\n'
        "    return rows"
    )
    return [
        words, f"vec = {r.vectorizer}", f"{x} = vec.fit_transform(words({train})).toarray()",
        f"{x_test} = vec.{call}(words({test})).toarray()",
    ]  # fmt: skip


# train


def _train(r: Recipe, schema: Schema) -> list[str]:
    _, _, x, x_test, y, model, pred, _ = r.names
    lines, predictions = [], []
    averaged = len(r.models) > 1
    method, column = _prediction(r, schema, averaged)
    for i, constructor in enumerate(r.models):
        name = f"{model}{i + 1}" if averaged else model
        lines.append(f"{name} = {constructor}")
        if r.validate:
            scoring = SCORING["number" if r.regress else schema.problem if schema.problem in SCORING else schema.prediction]
            lines.append(f'print("cv", cross_val_score({name}, {x}, {y}, cv=3, scoring="{scoring}").mean())')
        if r.mistake != "fit":
            lines.append(f"{name}.fit({x}, {y})")
        predictions.append(f"{name}.{method}({x_test}){column}")
    lines.append(f"{pred} = ({' + '.join(predictions)}) / {len(predictions)}" if averaged else f"{pred} = {predictions[0]}")
    return lines + _finish(r, schema, averaged)


def _prediction(r: Recipe, schema: Schema, averaged: bool) -> tuple[str, str]:
    """Return the method that predicts, and what is taken from its result."""
    if r.regress or r.mistake in ("label", "labels"):
        return "predict", ""
    if schema.prediction == "label":
        return ("predict_proba" if averaged or r.mistake == "proba" else "predict"), ""
    return "predict_proba", "" if r.mistake == "proba" or schema.prediction == "probabilities" else "[:, 1]"


def _finish(r: Recipe, schema: Schema, averaged: bool) -> list[str]:
    """Turn the models' numbers into what is asked: grades, values within bounds, the likeliest class."""
    *_, model, pred, _ = r.names
    low, high = schema.bounds
    lines = [f"{pred} = np.expm1({pred})"] if r.log_target else []
    if r.regress and schema.prediction == "label" and r.mistake != "round":
        lines.append(f"{pred} = np.clip(np.round({pred}), {low}, {high}).astype(int)")
    elif r.regress and schema.prediction == "value" and low > float("-inf"):
        lines.append(f"{pred} = np.clip({pred}, {low}, {high if high < float('inf') else None})")
    elif schema.prediction == "label" and not r.regress and averaged and r.mistake != "proba":
        lines.append(f"{pred} = {model}1.classes_[{pred}.argmax(axis=1)]")
    elif r.smooth and r.mistake != "labels":
        lines.append(f"{pred} = {1 - r.smooth} * {pred} + {r.smooth} / {pred}.shape[1]")
    return lines


# submit


def _submit(r: Recipe, schema: Schema) -> list[str]:
    *_, sub = r.names
    lines = _spans(r, schema) if r.features.words else []
    lines += _frame(r, schema) if r.submit == "frame" else _class_columns(r, schema)
    return lines if r.mistake == "forget" else [*lines, f'{sub}.to_csv("submission.csv", index=False)']


def _frame(r: Recipe, schema: Schema) -> list[str]:
    _, test, *_, pred, sub = r.names
    targets = schema.target_columns
    if len(targets) == 1:
        columns = {targets[0]: "spans" if r.features.words else pred}
    else:
        columns = {target: f"{pred}[:, {i}]" for i, target in enumerate(targets)}
    if r.mistake == "header":
        columns["prediction"] = columns.pop(targets[0])
    cells = ", ".join(f"{quoted(name)}: {value}" for name, value in columns.items())
    id_column = quoted(schema.id_column)
    return [f"{sub} = pd.DataFrame({{{id_column}: {test}[{id_column}], {cells}}})"]


def _class_columns(r: Recipe, schema: Schema) -> list[str]:
    """Write a column of probabilities per class, in the order of the sample submission or under the classes' names."""
    _, test, *_, model, pred, sub = r.names
    sample, id_column = f"pd.read_csv({quoted(schema.sample_file)})", quoted(schema.id_column)
    if r.submit == "sample":
        columns = f"{sub}.columns[:-1]" if r.mistake == "header" else f"{sub}.columns[1:]"
        return [f"{sub} = {sample}", f"{sub}[{columns}] = {pred}"]
    classes = f"{model if len(r.models) == 1 else model + '1'}.classes_"
    lines = [f"{sub} = pd.DataFrame({pred}, columns={classes})"]
    if r.submit == "reindex":
        lines.append(f"{sub} = {sub}.reindex(columns={sample}.columns, fill_value=0)")
        given = f"{sub}[{id_column}] = {test}[{id_column}]"
    else:
        given = f"{sub}.insert(0, {id_column}, {test}[{id_column}])"
    return lines if r.mistake == "header" else [*lines, given]


def _spans(r: Recipe, schema: Schema) -> list[str]:
    _, test, *_, pred, _ = r.names
    span = '" ".join(w[i] for i in keep)' if r.gaps else '" ".join(w[keep[0] : keep[-1] + 1])'
    loop = (
        f"for t in {test}[{quoted(schema.text[0])}]:\n"
        "    w = t.split()\n"
        f"    q = {pred}[start : start + len(w)]\n"
        "    start += len(w)\n"
        f"    keep = [i for i in range(len(w)) if {r.keep}]\n"
        f"    spans.append({span} if keep else t)"
    )
    return ["spans, start = [], 0", loop]


def _break(program: str, recipe: Recipe, rng: random.Random) -> str:
    """Make the mistakes that are made on the finished text."""
    if recipe.mistake == "syntax":
        closing = [i for i, c in enumerate(program) if c in ")]:"]
        at = rng.choice(closing)
        return program[:at] + program[at + 1 :]
    if recipe.mistake == "rename":  # one later use of a variable under the name of another style
        other_style = rng.choice([names for names in NAMES if names != recipe.names])
        uses = [
            (m, other)
            for name, other in zip(recipe.names, other_style, strict=True)
            if name != other
            for m in list(re.finditer(rf"\b{name}\b", program))[1:]
        ]
        use, other = rng.choice(uses)
        return program[: use.start()] + other + program[use.end() :]
    return program


def sample_demonstration(
    schema: Schema, rng: random.Random, *, improve_share: float, mistake_share: float, plain: bool = False
) -> tuple[Attempt | None, str]:
    """Return (earlier attempt or None, response) of one demonstration. plain: all in one way of writing.

    The score and the output of an earlier attempt are made up, not measured: they only teach the prompt's form.
    """
    recipe = sample_recipe(schema, rng, mistake_share)
    style = {"names": NAMES[0], "comments": False, "helper": False, "notebook": False, "modules": False} if plain else {}
    recipe = replace(recipe, **style)
    if rng.random() >= improve_share:
        return None, render_response(recipe, schema, rng)
    failed = recipe.mistake not in ("", "label")
    output = MISTAKES[recipe.mistake] if failed else (f"cv {rng.uniform(0.5, 0.8)}" if recipe.validate else "")
    earlier = Attempt(render_program(recipe, schema, rng), output, None if failed else rng.gauss(0.3, 0.15))
    better = replace(improve_recipe(recipe, schema, rng, mistake_share), **style)
    return earlier, render_response(better, schema, rng)
