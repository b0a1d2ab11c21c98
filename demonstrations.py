"""Demonstrations: solution programs written by a generator from a task's schema, mistakes included.

A Recipe says what a program does (features, models, validation, style, mistake); `render_program` writes it down. One
recipe of a task and one `random.Random` give the same text everywhere. A share of the recipes carries one of the mistakes
that people make, so that the supervised policy leaves reinforcement learning something to remove.
"""

import random
import re
from dataclasses import dataclass, replace

from prompts import Attempt
from tasks import Schema

# name of ... (train table, test table, features, test features, target, model, prediction, submission)
NAMES = (
    ("train", "test", "X", "X_test", "y", "model", "pred", "sub"),
    ("train_df", "test_df", "X_train", "X_test", "y_train", "clf", "preds", "submission"),
    ("tr", "te", "F", "F_te", "y", "est", "p", "out"),
)
IMPORTS = {  # a name in a program -> the statement that brings it
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "TfidfVectorizer": "from sklearn.feature_extraction.text import TfidfVectorizer",
    "CountVectorizer": "from sklearn.feature_extraction.text import CountVectorizer",
    "StandardScaler": "from sklearn.preprocessing import StandardScaler",
    "MinMaxScaler": "from sklearn.preprocessing import MinMaxScaler",
    "QuantileTransformer": "from sklearn.preprocessing import QuantileTransformer",
    "LogisticRegression": "from sklearn.linear_model import LogisticRegression",
    "SGDClassifier": "from sklearn.linear_model import SGDClassifier",
    "RandomForestClassifier": "from sklearn.ensemble import RandomForestClassifier",
    "ExtraTreesClassifier": "from sklearn.ensemble import ExtraTreesClassifier",
    "GradientBoostingClassifier": "from sklearn.ensemble import GradientBoostingClassifier",
    "HistGradientBoostingClassifier": "from sklearn.ensemble import HistGradientBoostingClassifier",
    "AdaBoostClassifier": "from sklearn.ensemble import AdaBoostClassifier",
    "KNeighborsClassifier": "from sklearn.neighbors import KNeighborsClassifier",
    "GaussianNB": "from sklearn.naive_bayes import GaussianNB",
    "DecisionTreeClassifier": "from sklearn.tree import DecisionTreeClassifier",
    "SVC": "from sklearn.svm import SVC",
    "MLPClassifier": "from sklearn.neural_network import MLPClassifier",
    "cross_val_score": "from sklearn.model_selection import cross_val_score",
}
MODELS = {  # constructor -> hyper-parameters and the values to draw from
    "LogisticRegression": {"C": (0.03, 0.1, 0.3, 1, 3), "max_iter": (200, 500, 1000)},
    "SGDClassifier": {"loss": ('"log_loss"',), "alpha": (0.0001, 0.001, 0.01)},
    "RandomForestClassifier": {"n_estimators": (50, 100, 200), "min_samples_leaf": (1, 2, 3, 5), "max_depth": (4, 6, 8, None)},
    "ExtraTreesClassifier": {"n_estimators": (50, 100, 200), "min_samples_leaf": (1, 2, 3, 5)},
    "GradientBoostingClassifier": {"n_estimators": (30, 50, 100), "learning_rate": (0.03, 0.05, 0.1), "max_depth": (2, 3, 4)},
    "HistGradientBoostingClassifier": {"max_iter": (50, 100), "learning_rate": (0.05, 0.1), "max_leaf_nodes": (4, 8, 15)},
    "AdaBoostClassifier": {"n_estimators": (50, 100)},
    "KNeighborsClassifier": {"n_neighbors": (3, 5, 9, 15, 25)},
    "GaussianNB": {},
    "DecisionTreeClassifier": {"max_depth": (2, 3, 4, 6)},
    "SVC": {"C": (0.3, 1, 3), "probability": (True,)},
    "MLPClassifier": {"hidden_layer_sizes": ("(16,)", "(32,)"), "max_iter": (200, 300)},
}
MISTAKES = {  # what people get wrong -> what the run says, in the words of reward.py
    "import": "error: NameError: name 'np' is not defined",
    "column": "error: KeyError: \"['n_words_total'] not in index\"",
    "file": "error: FileNotFoundError: File test_data.json does not exist",
    "transform": "error: ValueError: X has 200 features, but the model is expecting 400 features as input.",
    "proba": "error: ValueError: Per-column arrays must each be 1-dimensional",
    "fit": "error: NotFittedError: This instance is not fitted yet.",
    "rename": "error: NameError: name 'te' is not defined",
    "syntax": "error: SyntaxError: invalid syntax",
    "header": "invalid submission: a column is missing",
    "forget": "no submission: no submission.csv",
    "label": "",  # class labels where probabilities are asked: valid, but worse
}


@dataclass(frozen=True)
class Recipe:
    """What a program does, and how it is written."""

    names: tuple[str, ...]
    numeric: tuple[str, ...]  # columns used as numbers
    text: tuple[str, ...]  # columns joined into one text
    length_of: str  # text column whose characters and words become numbers, or "" for none
    log: bool  # log1p of the numbers
    scaler: str  # a constructor, or "" for none
    vectorizer: str
    models: tuple[str, ...]  # constructor calls; two are averaged
    validate: bool
    comments: bool
    helper: bool  # features in a function that serves both tables
    notebook: bool  # imports where they are first needed, instead of all at the top
    mistake: str  # a key of MISTAKES, or "" for none


def sample_recipe(schema: Schema, rng: random.Random, mistake_share: float) -> Recipe:
    """Draw a recipe. `mistake_share` of them carry a mistake. Raises ValueError for a schema that is not covered yet."""
    if schema.problem != "binary" or not schema.numeric:
        raise ValueError(f"the demonstrations cover binary tasks with numeric columns; this one is {schema.problem}")
    numeric = tuple(c for c in schema.numeric if rng.random() < 0.75) or schema.numeric[:1]
    kind = rng.choice(("numeric", "text", "both", "both")) if schema.text else "numeric"
    impossible = {"text": "column", "numeric": "transform"}.get(kind)
    return Recipe(
        names=rng.choice(NAMES),
        numeric=(schema.numeric if rng.random() < 0.5 else numeric) if kind != "text" else (),
        text=tuple(rng.sample(schema.text, rng.randint(1, len(schema.text)))) if kind != "numeric" else (),
        length_of=rng.choice(schema.text) if schema.text and kind != "text" and rng.random() < 0.4 else "",
        log=kind != "text" and rng.random() < 0.4,
        scaler=rng.choice(("", "StandardScaler()", "MinMaxScaler()", "QuantileTransformer(n_quantiles=50)")),
        vectorizer=_vectorizer(rng),
        models=tuple(_model(rng) for _ in range(1 if rng.random() < 0.7 else 2)),
        validate=rng.random() < 0.2,
        comments=rng.random() < 0.3,
        helper=rng.random() < 0.3,
        notebook=rng.random() < 0.5,
        mistake=rng.choice([m for m in MISTAKES if m != impossible]) if rng.random() < mistake_share else "",
    )


def improve_recipe(recipe: Recipe, schema: Schema, rng: random.Random, mistake_share: float) -> Recipe:
    """Draw what an engineer would try next: another model, perhaps other features, perhaps a mistake of its own."""
    fresh = sample_recipe(schema, rng, mistake_share)
    features = fresh if rng.random() < 0.5 or fresh.mistake in ("column", "transform") else recipe
    return replace(
        fresh, names=recipe.names, helper=recipe.helper, numeric=features.numeric, text=features.text,
        length_of=features.length_of, log=features.log, vectorizer=features.vectorizer,
    )  # fmt: skip


def _call(name: str, options: dict, rng: random.Random) -> str:
    arguments = [f"{key}={rng.choice(values)}" for key, values in options.items() if rng.random() < 0.8 or key in _NEEDED]
    return f"{name}({', '.join(arguments)})"


_NEEDED = {"loss", "probability", "max_iter", "max_features", "n_estimators"}  # probabilities, convergence, speed


def _model(rng: random.Random) -> str:
    name = rng.choice(tuple(MODELS))
    return _call(name, MODELS[name], rng)


def _vectorizer(rng: random.Random) -> str:
    options = {"max_features": (100, 200, 400), "ngram_range": ("(1, 1)", "(1, 2)"), "min_df": (1, 2, 3)}
    name = rng.choice(("TfidfVectorizer", "TfidfVectorizer", "CountVectorizer"))
    if name == "TfidfVectorizer":
        options["sublinear_tf"] = (True,)
    return _call(name, options, rng)


def render_response(recipe: Recipe, schema: Schema, rng: random.Random) -> str:
    """Write the whole answer: one line of plan, then the program in a fenced block."""
    parts = ((recipe.scaler or "plain", "numbers", recipe.numeric), (recipe.vectorizer, "text", recipe.text))
    features = " and ".join(f"{tool.split('(')[0]} {what}" for tool, what, used in parts if used)
    models = " and ".join(model.split("(")[0] for model in recipe.models)
    return f"Plan: {features} with {models}.\n```python\n{render_program(recipe, schema, rng)}```"


def render_program(recipe: Recipe, schema: Schema, rng: random.Random) -> str:
    """Write the program of a recipe. `rng` only chooses where its mistake goes."""
    blocks = [
        ("load", _load(recipe, schema)),
        ("features", _features(recipe)),
        ("train", _train(recipe, schema)),
        ("submit", _submit(recipe, schema)),
    ]
    missing = _mentioned("\n".join(line for _, lines in blocks for line in lines))
    dropped = rng.choice(missing) if recipe.mistake == "import" else ""
    missing = [name for name in missing if name != dropped]
    written = []
    if not recipe.notebook:
        written, missing = [IMPORTS[name] for name in missing], []
    for title, lines in blocks:
        written += [f"# {title}"] if recipe.comments else []
        for line in lines:
            needed = [name for name in missing if name in _mentioned(line)]
            missing = [name for name in missing if name not in needed]
            written += [*(IMPORTS[name] for name in needed), line]
    return _break("\n".join(written) + "\n", recipe, rng)


def _mentioned(code: str) -> list[str]:
    return [name for name in IMPORTS if re.search(rf"\b{name}\b", code)]


def _load(r: Recipe, schema: Schema) -> list[str]:
    train, test, _, _, y, *_ = r.names
    test_file = "test_data." + schema.file_format if r.mistake == "file" else schema.test_file
    target = f'{y} = {train}["{schema.target_columns[0]}"]'
    return [
        f'{train} = pd.read_{schema.file_format}("{schema.train_file}")',
        f'{test} = pd.read_{schema.file_format}("{test_file}")',
        target + (".astype(int)" if schema.problem == "binary" else ""),
    ]


def _features(r: Recipe) -> list[str]:
    _, _, x, x_test, *_ = r.names
    both = bool(r.numeric and r.text)
    lines = []
    if r.numeric:
        lines += _numbers(r, *(("N", "N_test") if both else (x, x_test)))
    if r.text:
        lines += _text(r, *(("T", "T_test") if both else (x, x_test)))
    if both:
        lines += [f"{x} = np.hstack([N, T])", f"{x_test} = np.hstack([N_test, T_test])"]
    return lines


def _text(r: Recipe, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    text = ' + " " + '.join(f'd["{c}"]' for c in r.text)
    call = "fit_transform" if r.mistake == "transform" else "transform"
    return [
        f"vec = {r.vectorizer}",
        f"text = lambda d: {text}",
        f"{out} = vec.fit_transform(text({train})).toarray()",
        f"{out_test} = vec.{call}(text({test})).toarray()",
    ]


def _numbers(r: Recipe, out: str, out_test: str) -> list[str]:
    train, test, *_ = r.names
    columns = list(r.numeric)
    lines = []
    if r.length_of:
        lines += [
            f"for d in ({train}, {test}):",
            f'    d["n_chars"] = d["{r.length_of}"].str.len()',
            f'    d["n_words"] = d["{r.length_of}"].str.split().str.len()',
        ]
        columns += ["n_chars", "n_words"]
    if r.mistake == "column":
        columns[-1] += "_total"
    lines.append("cols = [" + ", ".join(f'"{c}"' for c in columns) + "]")
    value = "np.log1p(d[cols].clip(lower=0))" if r.log else "d[cols].fillna(0)"
    if r.helper:
        lines += [f"def numbers(d):\n    return {value}", f"{out} = numbers({train})", f"{out_test} = numbers({test})"]
    else:
        lines += [f"{out} = {value.replace('d[', train + '[')}", f"{out_test} = {value.replace('d[', test + '[')}"]
    if r.scaler:
        lines += [f"scaler = {r.scaler}", f"{out} = scaler.fit_transform({out})", f"{out_test} = scaler.transform({out_test})"]
    return lines


def _train(r: Recipe, schema: Schema) -> list[str]:
    _, _, x, x_test, y, model, pred, _ = r.names
    lines, predictions = [], []
    method = "predict" if r.mistake == "label" else "predict_proba"
    column = "" if r.mistake in ("label", "proba") else "[:, 1]"
    for i, constructor in enumerate(r.models):
        name = model if len(r.models) == 1 else f"{model}{i + 1}"
        lines.append(f"{name} = {constructor}")
        if r.validate:
            lines.append(f'print("cv", cross_val_score({name}, {x}, {y}, cv=3, scoring="roc_auc").mean())')
        if r.mistake != "fit":
            lines.append(f"{name}.fit({x}, {y})")
        predictions.append(f"{name}.{method}({x_test}){column}")
    if len(predictions) == 1:
        return [*lines, f"{pred} = {predictions[0]}"]
    return [*lines, f"{pred} = ({' + '.join(predictions)}) / {len(predictions)}"]


def _submit(r: Recipe, schema: Schema) -> list[str]:
    _, test, *_, pred, sub = r.names
    target = "prediction" if r.mistake == "header" else schema.target_columns[0]
    frame = f'{sub} = pd.DataFrame({{"{schema.id_column}": {test}["{schema.id_column}"], "{target}": {pred}}})'
    return [frame] if r.mistake == "forget" else [frame, f'{sub}.to_csv("submission.csv", index=False)']


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


def sample_demonstration(schema: Schema, rng: random.Random, *, improve_share: float, mistake_share: float):
    """Return (earlier attempt or None, response) of one demonstration.

    The score and the output of an earlier attempt are made up, not measured: they only teach the prompt's form.
    """
    recipe = sample_recipe(schema, rng, mistake_share)
    if rng.random() >= improve_share:
        return None, render_response(recipe, schema, rng)
    failed = recipe.mistake not in ("", "label")
    output = MISTAKES[recipe.mistake] if failed else (f"cv {rng.uniform(0.5, 0.8)}" if recipe.validate else "")
    earlier = Attempt(render_program(recipe, schema, rng), output, None if failed else rng.gauss(0.3, 0.15))
    better = improve_recipe(recipe, schema, rng, mistake_share)
    return earlier, render_response(better, schema, rng)
