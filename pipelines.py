"""Reference pipelines: a constant, a simple linear and a hand-tuned model of every task, to compare a policy with.

They know the descriptions, not the rules of the twins. baselines.py appends a call of `main` to this file and runs the
result in the sandbox like a policy's program, so it imports nothing of ours. Each function yields the predictions of the
three, one after the other, so that a simple model never waits for a tuned one.
"""

import io
import itertools
import json
from collections.abc import Iterator

import numpy as np
import pandas as pd
from PIL import Image
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

RUNGS = ("constant", "linear", "tuned")
FILE = "_file"  # column with the image or geometry of a row: its path, or its bytes
Ladder = Iterator[np.ndarray]  # predictions of the rungs


def proba(model, x, y, x_test) -> np.ndarray:
    return model.fit(x, y).predict_proba(x_test)


def scaled(**options) -> object:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=200, **options))


def boosting(**options) -> GradientBoostingClassifier:
    defaults = {"max_depth": 2, "n_estimators": 80, "learning_rate": 0.07, "subsample": 0.7, "max_features": 0.5}
    return GradientBoostingClassifier(random_state=0, **(defaults | options))


def forest(trees: int = 150, **options) -> RandomForestClassifier:
    return RandomForestClassifier(trees, random_state=0, **({"min_samples_leaf": 2} | options))


def insults(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    def engineer(d):
        text = d["Comment"]
        letters = text.str.count("[a-zA-Z]")
        parts = [text.str.len(), text.str.count(" "), text.str.count("[A-Z]") / letters, text.str.count("!")]
        you = text.str.lower().str.count(r"\byou")
        return np.column_stack([*parts, you, d["Date"].str[8:10].where(d["Date"] != "", "12").astype(int)])

    y, texts = train["Insult"], (train["Comment"], test["Comment"])
    yield np.zeros(len(test))
    yield proba(make_pipeline(TfidfVectorizer(), LogisticRegression()), texts[0], y, texts[1])[:, 1]
    words = TfidfVectorizer(ngram_range=(1, 3), sublinear_tf=True)
    ngrams = proba(make_pipeline(words, LogisticRegression(C=20)), texts[0], y, texts[1])[:, 1]
    boosted = proba(boosting(), engineer(train), y, engineer(test))[:, 1]
    yield 0.3 * ngrams + 0.7 * boosted


def essay_scoring(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    y = train["score"].to_numpy()
    yield np.full(len(test), 3)
    linear = make_pipeline(TfidfVectorizer(), Ridge()).fit(train["full_text"], y).predict(test["full_text"])
    yield np.clip(np.rint(linear), 1, 6).astype(int)
    known = CountVectorizer(min_df=4).fit(train["full_text"]).vocabulary_

    def engineer(d):
        rows = []
        for text in d["full_text"]:
            words = text.replace(".", "").replace(",", "").lower().split()
            rare = sum(word not in known and len(word) > 1 for word in words)
            shape = [len(words), np.log(len(words)), text.count("\n\n"), text.count(","), np.mean([len(w) for w in words])]
            rows.append([*shape, rare, rare / len(words), len(set(words)) / len(words), text.count(",") / text.count(".")])
        return np.array(rows)

    x, x_test = engineer(train), engineer(test)
    options = {"max_depth": 3, "n_estimators": 120, "learning_rate": 0.06, "subsample": 0.7, "max_features": 0.5}
    raw = GradientBoostingRegressor(random_state=0, **options).fit(x, y).predict(x_test)
    raw = raw + ExtraTreesRegressor(200, min_samples_leaf=2, random_state=0).fit(x, y).predict(x_test)
    ranks = raw.argsort().argsort() / len(raw)
    yield np.sort(y)[(ranks * len(y)).astype(int)]


def tweet_sentiment(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    def tokens(row, context):
        words = row.text.lower().split()
        padded = ["<", *words, ">"]
        for i, word in enumerate(words, 1):
            features = {f"{row.sentiment} {word.strip('!.,')}": 1}
            if context:
                sides = {f"{row.sentiment} {k} {padded[i + k].strip('!.,')}": 1 for k in (-1, 1)}
                features |= sides | {row.sentiment: 1, f"{row.sentiment} !": "!" in word}
            yield features

    def spans(context, choose):
        x, y = [], []
        for row in train.itertuples():
            start = len(row.text[: max(row.text.find(row.selected_text), 0)].split())
            chosen = range(start, start + len(row.selected_text.split()))
            for i, features in enumerate(tokens(row, context)):
                x.append(features)
                y.append(i in chosen)
        vectors = DictVectorizer()
        model = LogisticRegression(C=3, max_iter=300).fit(vectors.fit_transform(x), y)
        for row in test.itertuples():
            yield choose(row.text.split(), model.decision_function(vectors.transform(list(tokens(row, context)))))

    def first_to_last(words, logits):
        good = np.flatnonzero(logits > 0)
        return " ".join(words[good[0] : good[-1] + 1]) if len(good) else " ".join(words)

    def best_sum(words, logits):
        total = np.concatenate([[0], logits.cumsum()])
        start, end = max(((i, j) for j in range(1, len(total)) for i in range(j)), key=lambda s: total[s[1]] - total[s[0]])
        return " ".join(words[start:end])

    yield test["text"].to_numpy()
    yield np.array([*spans(False, first_to_last)])
    yield np.array([*spans(True, best_sum)])


def tabular_may_2022(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    numeric = list(schema.numeric)

    def engineer(d):
        letters = np.array([[ord(letter) for letter in code] for code in d["f_27"]])
        sums = [d["f_02"] + d["f_21"], np.abs(d["f_02"] + d["f_21"]), d["f_00"] + d["f_01"]]  # strongly correlated pairs
        return np.column_stack([d[numeric], letters, [len(set(code)) for code in d["f_27"]], *sums])

    y = train["target"]
    yield np.full(len(test), 0.5)
    yield proba(scaled(), train[numeric], y, test[numeric])[:, 1]
    x, x_test = engineer(train), engineer(test)
    tuned = proba(boosting(n_estimators=150), x, y, x_test) + proba(scaled(C=0.1), x, y, x_test)
    yield tuned[:, 1] / 2


def tabular_dec_2021(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    features, y = list(schema.numeric), train["Cover_Type"].to_numpy()

    def engineer(d):
        angle = np.deg2rad(d["Aspect"])
        north = [np.cos(angle) * d["Slope"], d["Elevation"] - 0.2 * d["Horizontal_Distance_To_Hydrology"], d["Elevation"]]
        soil = d[[c for c in features if c.startswith("Soil")]].to_numpy().argmax(axis=1)
        return np.column_stack([d[features[:14]], *north, soil])

    measures = features[:10]
    yield np.full(len(test), pd.Series(y).mode()[0])
    yield scaled().fit(train[measures], y).predict(test[measures])
    yield forest(max_features=0.6, min_samples_leaf=1).fit(engineer(train), y).predict(engineer(test))


def patent_phrases(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    joined = [d["anchor"] + " " + d["target"] for d in (train, test)]
    words = CountVectorizer(binary=True).fit(joined[0])

    def engineer(d):
        pairs = [(a.split(), t.replace(",", "").split()) for a, t in zip(d["anchor"], d["target"], strict=True)]
        overlap = [[len({*a} & {*t}), len({*a} | {*t}), a[0] in t, a[-1] in t, a[-1] + "s" in t, len(t)] for a, t in pairs]
        grams = [{text[i : i + 3] for i in range(len(text))} for c in ("anchor", "target") for text in d[c]]
        halves = zip(grams[: len(d)], grams[len(d) :], strict=True)
        shared = [len(a & t) / len(a | t) for a, t in halves]
        return np.column_stack([overlap, shared, words.transform(d["target"]).toarray(), d["context"].str[0].map(ord)])

    y = train["score"]
    yield np.zeros(len(test))
    yield make_pipeline(TfidfVectorizer(), Ridge()).fit(joined[0], y).predict(joined[1])
    tuned = RandomForestRegressor(200, min_samples_leaf=2, max_features=0.5, random_state=0).fit(engineer(train), y)
    yield tuned.predict(engineer(test))


def opened(content: bytes | str) -> io.BufferedIOBase:
    return io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb")


def pixels(d: pd.DataFrame) -> np.ndarray:
    return np.array([np.asarray(Image.open(opened(content)).resize((48, 48)), dtype=float) for content in d[FILE]])


def plant_pathology(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    y = train[list(schema.target_columns)].to_numpy().argmax(axis=1)

    def engineer(images):  # how much of the middle is orange, how much dark, how much green
        middle = images[:, 10:38, 10:38] / images.mean(axis=(1, 2, 3), keepdims=True)
        red, green, blue = np.moveaxis(middle, 3, 0)
        orange, dark = red - green, middle.mean(axis=3)
        counts = [(part > t).mean(axis=(1, 2)) for part, t in ((orange, 0.1), (orange, 0.3), (-dark, -0.5), (-dark, -0.65))]
        extremes = [np.percentile(part, q, axis=(1, 2)) for part in (orange, dark, green - blue) for q in (2, 10, 90, 98)]
        return np.column_stack([*counts, *extremes])

    yield np.full((len(test), 4), 0.25)
    x, x_test = pixels(train), pixels(test)
    small, small_test = (images.reshape(-1, 8, 6, 8, 6, 3).mean(axis=(2, 4)).reshape(-1, 192) for images in (x, x_test))
    yield proba(scaled(C=0.1), small, y, small_test)
    tuned = proba(forest(), engineer(x), y, engineer(x_test)) + proba(scaled(), engineer(x), y, engineer(x_test))
    yield tuned / 2


def leaf_classification(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    features, y = list(schema.numeric), train["species"]
    yield np.full((len(test), 99), 1 / 99)
    yield proba(scaled(tol=0.01), train[features], y, test[features])
    small, small_test = (pixels(d).reshape(-1, 8, 6, 8, 6).mean(axis=(2, 4)).reshape(-1, 64) / 1000 for d in (train, test))
    x, x_test = np.hstack([train[features], small]), np.hstack([test[features], small_test])
    discriminant = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2)).fit(x, y)
    yield softmax(0.07 * discriminant.decision_function(x_test), axis=1)


def transparent_conductors(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    numeric, targets = [*schema.categorical, *schema.numeric], list(schema.target_columns)

    def engineer(d):
        heights = []
        for content in d[FILE]:
            lines = [line.split() for line in opened(content).read().decode().splitlines()]
            vectors = np.array([line[1:] for line in lines if line[0] == "lattice_vector"], dtype=float)
            metals = np.array([line[1:4] for line in lines if line[0] == "atom" and line[4] != "O"], dtype=float)
            heights.append(np.linalg.solve(vectors.T, metals.T)[2].mean())
        groups = pd.get_dummies(d["spacegroup"]).reindex(columns=(12, 33, 167, 194, 206, 227), fill_value=0)
        al, ga, indium = (d[f"percent_atom_{m}"] for m in ("al", "ga", "in"))
        return np.column_stack([d[numeric], groups, heights, al * ga, al * indium, ga * indium])

    yield np.tile(train[targets].median(), (len(test), 1))
    yield np.maximum(LinearRegression().fit(train[numeric], train[targets]).predict(test[numeric]), 0)
    options = {"max_depth": 4, "n_estimators": 150, "learning_rate": 0.06, "subsample": 0.6, "max_features": 0.6}
    x, x_test, y = engineer(train), engineer(test), np.log1p(train[targets].to_numpy())
    tuned = [GradientBoostingRegressor(random_state=0, **options).fit(x, y[:, k]).predict(x_test) for k in (0, 1)]
    yield np.maximum(np.expm1(np.column_stack(tuned)), 0)


def spooky_author(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    y, texts = train["author"], (train["text"], test["text"])
    yield np.tile(y.value_counts(normalize=True).sort_index(), (len(test), 1))
    yield proba(make_pipeline(TfidfVectorizer(), LogisticRegression()), *texts[:1], y, texts[1])
    counts = CountVectorizer(token_pattern=r"\w+|[^\w\s]+", binary=True)
    tuned = proba(make_pipeline(counts, MultinomialNB(alpha=1.0)), texts[0], y, texts[1])
    tuned = tuned + proba(make_pipeline(counts, LogisticRegression(C=0.3)), texts[0], y, texts[1])
    yield tuned / 2


def chatbot_arena(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    winners = list(schema.target_columns)
    y = train[winners].to_numpy().argmax(axis=1)

    def lengths(d):
        return np.column_stack([d["response_a"].str.len(), d["response_b"].str.len()])

    def engineer(d):
        parts = []
        for name in ("response_a", "response_b"):
            rows = []
            for prompt, text in zip(d["prompt"], d[name], strict=True):
                asked = set(prompt.lower().strip('[]".?').split()) - {"me", "a", "to", "with", "about", "on", "the"}
                words = text.lower().split()
                share = sum(word.strip('.,"]') in asked for word in words) / len(words)
                length, lists = np.log(len(words)), "\\n2. " in text
                shape = [min(length, 4.5), max(length - 4.5, 0), lists, lists and "ist" in prompt]
                rows.append([*shape, share, "sorry" in text])
            parts.append(np.array(rows, dtype=float))
        difference = parts[0] - parts[1]
        return np.hstack([difference, np.abs(difference), np.minimum(*parts)])

    yield np.tile(train[winners].mean(), (len(test), 1))
    yield proba(scaled(), lengths(train), y, lengths(test))
    x, x_test = engineer(train), engineer(test)
    flipped = np.hstack([-x[:, :6], x[:, 6:]])  # the two answers may change places
    both, labels = np.vstack([x, flipped]), np.concatenate([y, np.array([1, 0, 2])[y]])
    yield 0.8 * proba(scaled(C=0.1), both, labels, x_test) + 0.2 * proba(forest(min_samples_leaf=8), both, labels, x_test)


def random_pizza(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    def engineer(d):
        raw, text = d[list(schema.numeric)].astype(float), d["request_text_edit_aware"]
        logs = np.log1p(raw.iloc[:, :9].clip(lower=0)).add_prefix("log_")
        minus, plus = (raw[f"requester_upvotes_{sign}_downvotes_at_request"] for sign in ("minus", "plus"))
        hour = raw["unix_timestamp_of_request_utc"] // 3600 % 24
        words, link = np.log1p(text.str.split().str.len()), text.str.contains("http") * 1.0
        return pd.concat([raw, logs], axis=1).assign(votes=minus / (plus + 1), hour=hour, words=words, link=link)

    yield np.full(len(test), 0.5)
    y, numeric = train["requester_received_pizza"].astype(int), list(schema.numeric)
    yield proba(scaled(), train[numeric].astype(float), y, test[numeric].astype(float))[:, 1]
    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True), LogisticRegression(C=5))
    texts = [d["request_title"] + " " + d["request_text_edit_aware"] for d in (train, test)]
    blend = proba(words, texts[0], y, texts[1])
    for model in (boosting(n_estimators=100, learning_rate=0.05, max_features=0.3), forest(200, min_samples_leaf=3)):
        blend = blend + proba(model, engineer(train), y, engineer(test))
    yield blend[:, 1] / 3


def hello_world(train: pd.DataFrame, test: pd.DataFrame, schema) -> Ladder:
    features, y = list(schema.numeric), train["malignant"]
    yield np.full(len(test), 0.5)
    yield proba(scaled(), train[features], y, test[features])[:, 1]
    both = (boosting(), scaled(C=0.3))
    yield sum(proba(model, train[features], y, test[features])[:, 1] for model in both) / 2


LADDERS = {
    f.__name__.replace("_", "-"): f
    for f in (
        hello_world, insults, essay_scoring, random_pizza, tweet_sentiment, tabular_may_2022, tabular_dec_2021, patent_phrases,
        plant_pathology, leaf_classification, transparent_conductors, spooky_author, chatbot_arena,
    )
}  # fmt: skip


def predict(task: str, rung: str, train: pd.DataFrame, test: pd.DataFrame, schema) -> np.ndarray:
    """Return one rung's predictions, (rows,) or (rows, target columns)."""
    return next(itertools.islice(LADDERS[task](train, test, schema), RUNGS.index(rung), None))


def read_table(path: str, schema) -> pd.DataFrame:
    """Return a public table as it is: texts such as NA stay texts, an absent number or text is not one."""
    if schema.file_format == "json":
        with open(path) as file:
            return pd.DataFrame(json.load(file))
    return pd.read_csv(path, na_filter=False, float_precision="round_trip", low_memory=False)


def main(task: str, rung: str, schema) -> None:
    """Read the public files of the current folder and write submission.csv."""
    train, test = read_table(schema.train_file, schema), read_table(schema.test_file, schema)
    for table, template in zip((train, test), schema.image_files or schema.geometry_files):  # noqa: B905
        table[FILE] = [template.format(**{schema.id_column: i}) for i in table[schema.id_column]]
    predictions = np.asarray(predict(task, rung, train, test, schema)).reshape(len(test), -1)
    columns = dict(zip(schema.target_columns, predictions.T, strict=True))
    pd.DataFrame({schema.id_column: test[schema.id_column], **columns}).to_csv("submission.csv", index=False)
