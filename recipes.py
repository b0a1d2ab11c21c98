"""Recipes: what a demonstration's program does, drawn from a task's schema, mistakes included.

    recipe = sample_recipe(schema, random.Random(0), mistake_share=0.9)

A Recipe names features, models, validation, style and mistake; demonstrations.py writes it down as a program. One schema
and one `random.Random` give the same recipe everywhere. A share of the recipes carries one of the mistakes that people
make, so that the supervised policy leaves reinforcement learning something to remove.
"""

import math
import random
from dataclasses import dataclass, replace

from prompts import find_runs, quoted
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
    "BernoulliNB": "from sklearn.naive_bayes import BernoulliNB",
    "LinearDiscriminantAnalysis": "from sklearn.discriminant_analysis import LinearDiscriminantAnalysis",
    "OneHotEncoder": "from sklearn.preprocessing import OneHotEncoder",
    "MultiOutputRegressor": "from sklearn.multioutput import MultiOutputRegressor",
    "Ridge": "from sklearn.linear_model import Ridge",
    "RandomForestRegressor": "from sklearn.ensemble import RandomForestRegressor",
    "ExtraTreesRegressor": "from sklearn.ensemble import ExtraTreesRegressor",
    "GradientBoostingRegressor": "from sklearn.ensemble import GradientBoostingRegressor",
    "HistGradientBoostingRegressor": "from sklearn.ensemble import HistGradientBoostingRegressor",
    "KNeighborsRegressor": "from sklearn.neighbors import KNeighborsRegressor",
    "DecisionTreeRegressor": "from sklearn.tree import DecisionTreeRegressor",
    "SVR": "from sklearn.svm import SVR",
    "MLPRegressor": "from sklearn.neural_network import MLPRegressor",
    "Image": "from PIL import Image",
}
MODULES = {  # a name in a program -> its module, where `from sklearn import MODULE` brings that
    name: words[1].removeprefix("sklearn.")
    for name, words in ((name, statement.split()) for name, statement in IMPORTS.items())
    if words[1].startswith("sklearn.") and words[1].count(".") == 1
}
Options = dict[str, dict[str, tuple]]
MODELS: Options = {  # constructor -> hyper-parameters and the values to draw from
    "LogisticRegression": {"C": (0.03, 0.1, 0.3, 1, 3), "max_iter": (200, 500, 1000)},
    "SGDClassifier": {"loss": ('"log_loss"',), "alpha": (0.0001, 0.001, 0.01)},
    "RandomForestClassifier": {"n_estimators": (30, 50, 100), "min_samples_leaf": (1, 2, 3, 5), "max_depth": (4, 6, 8, None)},
    "ExtraTreesClassifier": {"n_estimators": (30, 50, 100), "min_samples_leaf": (1, 2, 3, 5)},
    "GradientBoostingClassifier": {"n_estimators": (20, 30, 50), "learning_rate": (0.05, 0.1, 0.2), "max_depth": (2, 3, 4)},
    "HistGradientBoostingClassifier": {"max_iter": (30, 50), "learning_rate": (0.05, 0.1), "max_leaf_nodes": (4, 8, 15)},
    "AdaBoostClassifier": {"n_estimators": (30, 50)},
    "KNeighborsClassifier": {"n_neighbors": (3, 5, 9, 15, 25)},
    "GaussianNB": {},
    "DecisionTreeClassifier": {"max_depth": (2, 3, 4, 6)},
    "SVC": {"C": (0.3, 1, 3), "probability": (True,)},
    "MLPClassifier": {"hidden_layer_sizes": ("(16,)", "(32,)"), "max_iter": (200, 300)},
}
# Boosting grows a tree per class in every round. SGD can call all classes impossible: 0 / 0. The fewer families, the more
# demonstrations there are of each to remember its import by.
MULTICLASS: Options = {
    **{name: options for name, options in MODELS.items() if name not in ("SGDClassifier", "AdaBoostClassifier", "GaussianNB")},
    "GradientBoostingClassifier": {"n_estimators": (20, 30), "learning_rate": (0.1, 0.2), "max_depth": (2, 3)},
    "HistGradientBoostingClassifier": {"max_iter": (20, 30), "learning_rate": (0.1, 0.2), "max_leaf_nodes": (4, 8)},
    "LinearDiscriminantAnalysis": {"solver": ('"lsqr"',), "shrinkage": ('"auto"', 0.3, 0.6)},
}
MANY_CLASSES = 20  # and more
FOR_MANY_CLASSES: Options = {  # a few rows a class: strong regularisation
    "LogisticRegression": {"C": (0.003, 0.01, 0.03, 0.1, 1), "max_iter": (100, 200)},
    "RandomForestClassifier": {"n_estimators": (50, 100), "min_samples_leaf": (1, 2)},
    "ExtraTreesClassifier": {"n_estimators": (50, 100), "min_samples_leaf": (1, 2)},
    "KNeighborsClassifier": {"n_neighbors": (10, 20, 40)},
    "MLPClassifier": {"hidden_layer_sizes": ("(32,)", "(64,)"), "max_iter": (20, 40)},
}
FOR_WORDS: Options = {  # a text makes many rows: no kernels, no networks; and few families, as above
    **{name: MODELS[name] for name in ("LogisticRegression", "SGDClassifier", "DecisionTreeClassifier")},
    "RandomForestClassifier": {"n_estimators": (20, 30, 50), "min_samples_leaf": (1, 2, 3), "max_depth": (8, 16, None)},
    "ExtraTreesClassifier": {"n_estimators": (20, 30), "min_samples_leaf": (1, 2, 3)},
    "BernoulliNB": {"alpha": (0.1, 0.3, 1)},
}
REGRESSORS: Options = {
    "Ridge": {"alpha": (0.1, 0.3, 1, 3, 10)},
    "RandomForestRegressor": {"n_estimators": (30, 50), "min_samples_leaf": (1, 2, 3, 5), "max_depth": (4, 6, 8, None)},
    "ExtraTreesRegressor": {"n_estimators": (30, 50), "min_samples_leaf": (1, 2, 3, 5)},
    "GradientBoostingRegressor": {"n_estimators": (30, 50), "learning_rate": (0.1, 0.2), "max_depth": (2, 3, 4)},
    "HistGradientBoostingRegressor": {"max_iter": (30, 50), "learning_rate": (0.05, 0.1), "max_leaf_nodes": (4, 8, 15)},
    "KNeighborsRegressor": {"n_neighbors": (3, 5, 9, 15)},
    "DecisionTreeRegressor": {"max_depth": (2, 3, 4, 6)},
    "SVR": {"C": (0.3, 1, 3)},
    "MLPRegressor": {"hidden_layer_sizes": ("(16,)", "(32,)"), "max_iter": (200, 300)},
}
ONE_OUTPUT = ("GradientBoostingRegressor", "HistGradientBoostingRegressor", "SVR")
NEEDED = {"loss", "probability", "max_iter", "max_features", "n_estimators", "solver", "token_pattern"}  # never left to default
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
    "labels": "error: ValueError: Columns must be same length as key",  # the same where there is a column per class
    "round": "invalid submission: column 'score' holds 2.5, which is not a whole number",
    "path": "error: FileNotFoundError: [Errno 2] No such file or directory",
}

COUNTS = {  # numbers that a text s becomes
    "n_chars": "s.str.len()",
    "n_words": "s.str.split().str.len()",
    "n_lines": 's.str.count("\\n")',
    "n_commas": 's.str.count(",")',
    "n_marks": 's.str.count("[!?]")',
    "n_capitals": 's.str.count("[A-Z]")',
    "n_different": "s.map(lambda v: len({*v.split()}))",
}
COMPARISONS = {  # numbers that two texts a and b become
    "chars_a": "a.str.len()",
    "chars_b": "b.str.len()",
    "longer": "a.str.len() - b.str.len()",
    "ratio": "a.str.len() / b.str.len()",
    "digits": 'a.str.count("[0-9]") - b.str.count("[0-9]")',
    "shared": "[len({*u.split()} & {*v.split()}) for u, v in zip(a, b)]",
    "trigrams": "[len({*zip(u, u[1:], u[2:])} & {*zip(v, v[1:], v[2:])}) for u, v in zip(a, b)]",
}
LOOKS = (  # numbers that an image becomes
    "im.ravel()",
    "np.hstack([im.mean(axis=(0, 1)), im.std(axis=(0, 1))])",
    "np.quantile(im, [0.02, 0.1, 0.5, 0.9, 0.98], axis=(0, 1)).ravel()",
    "np.hstack([np.histogram(im[..., c], bins=12, range=(0, 2))[0] for c in range(3)])",
    "np.hstack([np.quantile(c, [0.02, 0.1, 0.9, 0.98]) for c in (im[..., 0] - im[..., 1], im.mean(axis=2))])",
)
WORDS = (  # what word i of a text of kind s is known by
    "{s}_{w[i]}",
    "{s}>{w[i + 1]}",
    "{s}<{w[i - 1]}",
    "{s}",
    "{s}_{w[i][-1]}",
)
KEEP = ("q[i] > 0.3", "q[i] > 0.4", "q[i] > 0.5", "q[i] > 0.6", "q[i] > q.max() / 2")
PLACES = (  # numbers that the atoms of a cell become
    "np.hstack([xyz.mean(axis=0), xyz.std(axis=0)])",
    "xyz.mean(axis=0) / (xyz.max(axis=0) + 0.1)",
    "np.hstack([len(xyz), xyz.mean(axis=0)])",
)


@dataclass(frozen=True)
class Features:
    """What the models see of a row."""

    numeric: tuple[str, ...]  # columns used as numbers
    text: tuple[str, ...]  # columns joined into one text, or the two of a pair
    derived: tuple[tuple[str, str], ...]  # names and expressions, of a table d, of numbers made of texts and codes
    log: bool  # log1p of the numbers
    bind: str = ""  # statement that names the texts of which `derived` speaks
    combine: str = ""  # how the vectors of the two texts of a pair become one: - * or abs, or "" for one text of both
    categories: tuple[str, ...] = ()  # columns that become one 0/1 column per value
    codes: tuple[str, ...] = ()  # columns of which each letter becomes a number
    look: str = ""  # expression for an image, or "" for none
    side: int = 0  # of the image, pixels, after resizing
    crop: bool = False  # only the middle of the image
    places: str = ""  # expression for the atoms, or "" for none
    metals: bool = False  # only those atoms that are not oxygen
    words: tuple[str, ...] = ()  # of spans: expressions of what each word is known by


@dataclass(frozen=True)
class Recipe:
    """What a program does, and how it is written."""

    names: tuple[str, ...]
    features: Features
    scaler: str  # a constructor, or "" for none
    vectorizer: str
    models: tuple[str, ...]  # constructor calls; two are averaged
    validate: bool
    comments: bool
    helper: bool  # features in a function that serves both tables
    notebook: bool  # imports where they are first needed, instead of all at the top
    modules: bool  # ensemble.AdaBoostClassifier instead of AdaBoostClassifier
    mistake: str = ""  # a key of MISTAKES, or "" for none
    select: bool = False  # all numeric columns by their type instead of their names
    regress: bool = False  # the models predict numbers
    log_target: bool = False
    smooth: float = 0.0  # weight of equal probabilities for all classes, mixed in
    submit: str = "frame"  # how the submission is made: frame | sample | classes | reindex
    keep: str = ""  # of spans: condition under which word i is in
    gaps: bool = False  # of spans: without the words between that are not in


def sample_recipe(schema: Schema, rng: random.Random, mistake_share: float) -> Recipe:
    """Draw a recipe. `mistake_share` of them carry a mistake. Raises ValueError for a schema that is not covered."""
    _require_covered(schema)
    recipe = Recipe(
        **_sample_inputs(schema, rng),
        **_sample_output(schema, rng),
        validate=rng.random() < 0.2 and len(schema.classes) <= MANY_CLASSES,  # too few rows to set some aside
        comments=rng.random() < 0.3,
        helper=rng.random() < 0.3,
        notebook=rng.random() < 0.5,
        modules=rng.random() < 0.5,
    )
    if recipe.features.words or recipe.features.combine or recipe.features.places:  # such programs are long enough
        recipe = replace(recipe, models=recipe.models[:1], validate=False)
    if recipe.validate and not schema.numeric:
        recipe = replace(recipe, models=recipe.models[:1])
    if len(recipe.features.numeric) == len(schema.numeric) > len(find_runs(schema.numeric)):
        recipe = replace(recipe, select=rng.random() < 0.5)
    return replace(recipe, mistake=rng.choice(_possible_mistakes(recipe, schema)) if rng.random() < mistake_share else "")


def improve_recipe(recipe: Recipe, schema: Schema, rng: random.Random, mistake_share: float) -> Recipe:
    """Draw what an engineer would try next: another model, perhaps other features, perhaps a mistake of its own."""
    fresh = sample_recipe(schema, rng, mistake_share)
    features = fresh if rng.random() < 0.5 or fresh.mistake in ("column", "transform", "path") else recipe
    return replace(
        fresh, names=recipe.names, helper=recipe.helper, features=features.features, select=features.select,
        vectorizer=features.vectorizer,
    )  # fmt: skip


def _require_covered(schema: Schema) -> None:
    if schema.problem == "span" and not (schema.text and schema.categorical):
        raise ValueError("the demonstrations cover spans of a text that has a category; this schema lacks one of them")
    inputs = (schema.numeric, schema.text, schema.categorical, schema.codes, schema.image_files, schema.geometry_files)
    if not any(inputs):
        raise ValueError("the demonstrations need columns or files to learn from; this schema has none")
    sorted_classes = tuple(sorted(schema.classes)) == schema.classes
    if schema.prediction == "probabilities" and schema.classes != schema.target_columns and not sorted_classes:
        raise ValueError("the demonstrations need classes in sorted order, or target columns that are named after them")


def _possible_mistakes(recipe: Recipe, schema: Schema) -> list[str]:
    features = recipe.features
    needs = {
        "column": features.numeric or features.derived,
        "transform": features.text or features.words,
        "proba": schema.prediction in ("probability", "span") or (schema.prediction == "label" and not recipe.regress),
        "label": schema.prediction == "probability",
        "labels": schema.prediction == "probabilities",
        "round": schema.prediction == "label" and recipe.regress,
        "path": features.look or features.places,
    }
    return [mistake for mistake in MISTAKES if needs.get(mistake, True)]


def _sample_inputs(schema: Schema, rng: random.Random) -> dict:
    """Draw names, features and what prepares them."""
    numeric = tuple(c for run in find_runs(schema.numeric) if rng.random() < 0.75 for c in run) or schema.numeric[:1]
    if schema.problem == "span":
        return {"names": rng.choice(NAMES), "features": _word_features(rng), "scaler": "", "vectorizer": _word_counter(rng)}
    kind = rng.choice(("numeric", "text", "both", "both")) if schema.text else "numeric"
    return {
        "names": rng.choice(NAMES),
        "features": _row_features(schema, kind, numeric, rng),
        "scaler": rng.choice(("", "StandardScaler()", "MinMaxScaler()", "QuantileTransformer(n_quantiles=50)")),
        "vectorizer": _vectorizer(rng),
    }


def _row_features(schema: Schema, kind: str, numeric: tuple[str, ...], rng: random.Random) -> Features:
    features = Features(
        numeric=(schema.numeric if rng.random() < 0.5 else numeric) if kind != "text" else (),
        text=_texts(schema, rng) if kind != "numeric" else (),
        **(_derived(schema, rng) if kind != "text" and schema.text else {"derived": ()}),
        log=kind != "text" and rng.random() < 0.4,
    )
    if schema.pair and features.text:
        features = replace(features, combine=rng.choice(("-", "*", "abs", "")))
    if schema.categorical and rng.random() < 0.6:
        features = replace(features, categories=schema.categorical)
    if schema.codes and rng.random() < 0.6:
        features = replace(features, codes=schema.codes)
    if schema.codes and rng.random() < 0.6:
        features = replace(features, derived=_letter_counts(schema))
    if schema.image_files and (not schema.numeric or rng.random() < 0.2):
        look, crop = rng.choice(LOOKS), rng.random() < 0.5
        side = rng.choice((8, 12) if look == LOOKS[0] else (16, 32, 48))
        features = replace(features, look=look, side=side, crop=crop)
    if schema.geometry_files and rng.random() < 0.5:
        few = features.numeric[:6]  # the program is long enough without the others
        features = replace(features, numeric=few, places=rng.choice(PLACES), metals=rng.random() < 0.5)
    if features == Features(numeric=(), text=(), derived=(), log=features.log):  # of a schema with nothing else
        features = replace(features, categories=schema.categorical, codes=schema.codes)
    return features


def _letter_counts(schema: Schema) -> tuple[tuple[str, str], ...]:
    return tuple((f"n_{c}", f"d[{quoted(c)}].map(lambda s: len(set(s)))") for c in schema.codes)


def _texts(schema: Schema, rng: random.Random) -> tuple[str, ...]:
    return schema.pair or tuple(rng.sample(schema.text, rng.randint(1, len(schema.text))))


def _derived(schema: Schema, rng: random.Random) -> dict:
    """Draw numbers made of the texts: two where there are other numbers, more where there are none."""
    if schema.numeric and rng.random() >= 0.4:
        return {"derived": ()}
    if schema.pair:
        bind = f"a, b = {', '.join(f'd[{quoted(c)}]' for c in schema.pair)}"
        chosen = rng.sample(tuple(COMPARISONS), rng.randint(1, 2))
        return {"bind": bind, "derived": tuple((name, COMPARISONS[name]) for name in chosen)}
    column = f"d[{quoted(rng.choice(schema.text))}]"
    if schema.numeric:
        return {"derived": tuple((name, column + COUNTS[name][1:]) for name in ("n_chars", "n_words"))}
    chosen = rng.sample(tuple(COUNTS), rng.randint(2, 4))
    return {"bind": f"s = {column}", "derived": tuple((name, COUNTS[name]) for name in chosen)}


def _word_features(rng: random.Random) -> Features:
    words = tuple(word for word in WORDS if rng.random() < 0.6) or WORDS[:1]
    return Features(numeric=(), text=(), derived=(), log=False, words=words)


def _sample_output(schema: Schema, rng: random.Random) -> dict:
    """Draw the models and what becomes of their predictions."""
    output: dict = {}
    grades = schema.problem == "ordinal" and all(isinstance(grade, int) for grade in schema.classes)
    regress = schema.problem == "regression" or (grades and rng.random() < 0.5)
    if regress:
        output = {"regress": True, "log_target": schema.bounds == (0, math.inf) and rng.random() < 0.4}
    if schema.prediction == "probabilities":
        styles = ["classes", "reindex"] if schema.classes == schema.target_columns else []
        styles += ["sample"] if tuple(sorted(schema.classes)) == schema.classes else []  # the order of predict_proba
        output = {"submit": rng.choice(styles), "smooth": rng.choice((0, 0.1, 0.3))}
    if schema.prediction == "span":
        output = {"keep": rng.choice(KEEP), "gaps": rng.random() < 0.2}
    table = _models_for(schema, regress)
    wrap = regress and len(schema.target_columns) > 1
    count = 1 if rng.random() < 0.7 else 2
    return output | {"models": tuple(_model(table, wrap, rng) for _ in range(count))}


def _models_for(schema: Schema, regress: bool) -> Options:
    if regress:
        return REGRESSORS
    if schema.problem == "span":
        return FOR_WORDS
    if schema.problem == "binary":
        return MODELS
    return FOR_MANY_CLASSES if len(schema.classes) > MANY_CLASSES else MULTICLASS


def _call(name: str, options: dict, rng: random.Random) -> str:
    arguments = [f"{key}={rng.choice(values)}" for key, values in options.items() if rng.random() < 0.8 or key in NEEDED]
    return f"{name}({', '.join(arguments)})"


def _model(table: Options, wrap: bool, rng: random.Random) -> str:
    name = rng.choice(tuple(table))
    call = _call(name, table[name], rng)
    return f"MultiOutputRegressor({call})" if wrap and name in ONE_OUTPUT else call


def _vectorizer(rng: random.Random) -> str:
    options = {"max_features": (100, 200, 400), "ngram_range": ("(1, 1)", "(1, 2)"), "min_df": (1, 2, 3)}
    name = rng.choice(("TfidfVectorizer", "TfidfVectorizer", "CountVectorizer"))
    if name == "TfidfVectorizer":
        options["sublinear_tf"] = (True,)
    return _call(name, options, rng)


def _word_counter(rng: random.Random) -> str:
    options = {"token_pattern": (r'r"\S+"',), "max_features": (200, 300), "min_df": (1, 2)}
    return _call("CountVectorizer", options, rng)
