"""Where the steps of a program are: the statements after which its imports, data, features, ... are done.

    find_steps(program)                        # names of the steps that a program does
    find_all_places(parse(program))            # [(statement, step)]: after which statement each step is complete

Steps are known by the names of calls in the syntax tree, so a step done in an unusual way is not found.
"""

import ast
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

MILESTONES = ("IMPORTS_DONE", "DATA_LOADED", "FEATURES_BUILT", "MODEL_BUILT", "TRAINING_COMPLETE", "PREDICTION_DONE",
              "SUBMISSION_SAVED")  # fmt: skip
IMPORTS, DATA, FEATURES, MODEL, TRAINING, PREDICTION, SAVED = MILESTONES

# A step is complete at its last statement before the first one of these; a sample submission read at the end, or a
# second model, must not move the milestone behind the work of later steps.
ENDS_AT = {IMPORTS: {DATA, TRAINING}, DATA: {TRAINING}, FEATURES: {TRAINING}, MODEL: {TRAINING},
           TRAINING: {PREDICTION}, PREDICTION: {SAVED}, SAVED: set()}  # fmt: skip

CALLS = {
    DATA: r"read(_\w+|lines?)?|load|loads|loadtxt|genfromtxt|load_dataset|reader|DictReader|imread",
    FEATURES: r"(fit_)?transform|fit_resample|get_dummies|fillna|drop(na|_duplicates)?|concat(enate)?|[hv]stack|"
    r"column_stack|merge|map|apply|replace|astype|factorize|assign|train_test_split|to_numpy|(as)?array|from_numpy",
    MODEL: r"(?!Dummy)[A-Z]\w*(Classifier|Regressor|Regression|Analysis|Forest|NB|SV[CR]|CV)|Linear\w*|\w*Ridge|"
    r"\w*Lasso|ElasticNet|Perceptron|CatBoost|Pipeline|make_pipeline|Sequential|AutoModel\w*",
    TRAINING: r"fit_predict|train|backward|cross_val\w*|lstsq|minimize|curve_fit|polyfit",
    PREDICTION: r"predict\w*|fit_predict|cross_val_predict|decision_function|forward|polyval",
    SAVED: r"to_csv|write_csv|savetxt|writerows?|write|write_text",
}
CALLS = {step: re.compile(pattern) for step, pattern in CALLS.items()}
NOT_A_MODEL = re.compile(  # fitting one of these is building features; a Dummy predicts a constant
    r"Dummy\w+|\w*(Vectorizer|Scaler|Encoder|Imputer|Transformer|Binarizer|Normalizer|Discretizer|Tokenizer|PCA|SVD|"
    r"NMF|Features|Selector|Threshold|Union)|Select\w+"
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
WITHS = (ast.With, ast.AsyncWith)
TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))  # TryStar: since Python 3.11
COMPOUND = (*LOOPS, *WITHS, *TRIES, ast.If, ast.Match, ast.ClassDef)
REPEATED = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)

CODING = re.compile(r"coding[:=][ \t]*([-\w.]+)")  # an encoding declaration (PEP 263)


def parse(program: str) -> ast.Module | None:
    """Return the syntax tree of a program, or None if it does not compile.

    One that declares another encoding than UTF-8 counts as such: it runs as bytes, and is then another program than this
    text (`# coding: utf-7` hides lines in a comment).
    """
    first_two = re.split(r"\r\n|\r|\n", program, maxsplit=2)[:2]
    if any(name.lower().replace("_", "-") not in ("utf-8", "utf8") for line in first_two for name in CODING.findall(line)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" is the program's matter
            tree = ast.parse(program)
            compile(program, "program", "exec", dont_inherit=True)  # finds a late `from __future__`, a stray return
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null bytes; nested too deep
        return None
    return tree


@dataclass
class Facts:
    """What finding steps needs to know about the whole program. Variables are dotted names, such as `self.model`."""

    functions: dict[str, list[ast.stmt]]  # body of each local function or method, and under its class's name __init__'s
    calls: Counter  # how often each name is called
    transformers: set[str]  # variables that hold a vectoriser, a scaler and the like
    fitted: set[str]  # other variables whose .fit is called
    models: set[str]  # variables that hold a model
    model_classes: set[str]  # local classes that predict
    function_steps: dict[str, set[str]] = field(default_factory=dict)
    steps: dict[ast.AST, set[str]] = field(default_factory=dict)  # of every statement, with all that it contains


def find_steps(program: str) -> set[str]:
    """Return the milestones whose steps the program does anywhere but in functions that it never calls."""
    tree = parse(program)
    try:
        return set() if tree is None else block_steps(tree.body, gather_facts(tree))
    except (RecursionError, ValueError):
        return set()


def gather_facts(tree: ast.Module) -> Facts:
    """Collect functions, calls and the variables that hold models or transformers."""
    nodes = list(ast.walk(tree))
    functions = {node.name: node.body for node in nodes if isinstance(node, FUNCTIONS) and node.name != "__init__"}
    calls = Counter(last_name(node.func) for node in nodes if isinstance(node, ast.Call))
    receivers, assigned, model_classes = defaultdict(set), defaultdict(set), set()  # variables by method, by maker
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(value=value, attr=method)):
                receivers[method].add(dotted(value))
            case ast.Assign(targets=[target], value=ast.Call(func)) if dotted(target):
                assigned[last_name(func)].add(dotted(target))
            case ast.ClassDef(name=name, body=body):
                methods = {method.name: method.body for method in body if isinstance(method, FUNCTIONS)}
                functions |= {name: methods["__init__"]} if "__init__" in methods else {}
                model_classes |= {name} if methods.keys() & {"forward", "predict", "predict_proba"} else set()
    predicting = set().union(*(receivers[method] for method in receivers if CALLS[PREDICTION].fullmatch(method)))
    transformers = (receivers["transform"] | receivers["fit_transform"]) - predicting
    models = set()
    for maker, variables in assigned.items():
        transformers |= variables if NOT_A_MODEL.fullmatch(maker) else set()
        models |= variables if CALLS[MODEL].fullmatch(maker) or maker in model_classes else set()
    fitted = receivers["fit"] - transformers - {""}
    facts = Facts(functions, calls, transformers - {""}, fitted, models, model_classes)
    for _ in range(8):  # a function does the steps of those it calls, which call others; deeper ones are left out
        facts.function_steps = {name: block_steps(body, facts) for name, body in functions.items()}
    return facts


def find_all_places(tree: ast.Module) -> list[tuple[ast.stmt, str]]:
    """Return after which statements each step is complete: (statement, step); none in a tree too deep to look through."""
    try:
        facts = gather_facts(tree)
        facts.steps = steps_by_node(tree, facts)
        return [(place, step) for step in MILESTONES for place in find_places(tree.body, step, facts)]
    except RecursionError:  # a legal program may nest deeper than Python code can follow
        return []


def find_places(block: list[ast.stmt], step: str, facts: Facts) -> list[ast.stmt]:
    """Return the statements of a block after which a step is complete: one, or one in each branch that does it."""
    steps = [facts.steps[statement] for statement in block]
    doing = [i for i, found in enumerate(steps) if step in found]
    if step == FEATURES:  # before any data, an assignment such as os.environ["X"] = "1" is no feature
        doing = [i for i in doing if i >= next((j for j, found in enumerate(steps) if DATA in found), 0)]
    if not doing:
        return []
    end = next((i for i, found in enumerate(steps) if found & ENDS_AT[step]), len(block))
    earlier = [i for i in doing if i < end]
    chosen = earlier[-1] if earlier else doing[0]
    statement = block[chosen]

    inner = [find_places(branch, step, facts) for branch in branches(statement, step, facts)]
    is_last = not any(found in MILESTONES[MILESTONES.index(step) + 1 :] for found in steps[chosen])
    is_detour = is_last and len(earlier) > 1 and not all(inner)  # `if small: df = df.fillna(0)` after other features
    places = [place for found in inner for place in found]
    # nothing can follow `return model.fit(X, y)` but the statement that called
    is_returned = not isinstance(statement, COMPOUND) and any(isinstance(place, ast.Return) for place in places)
    return [statement] if not places or is_detour or is_returned else places


def branches(statement: ast.stmt, step: str, facts: Facts) -> list[list[ast.stmt]]:
    """Return the blocks of a statement that are worth looking into. Loops are not: a print inside would repeat."""
    match statement:
        case ast.If(body=body, orelse=orelse):
            return [body, orelse]
        case ast.Match(cases=cases):
            return [case.body for case in cases]
        case _ if isinstance(statement, TRIES):
            done = statement.body + statement.orelse + statement.finalbody
            return [done, *(handler.body for handler in statement.handlers)]
        case _ if isinstance(statement, WITHS):  # a file opened for writing is complete when it is closed
            opened = any(step in node_steps(node, facts) for item in statement.items for node in ast.walk(item))
            return [] if opened else [statement.body]
        case _ if isinstance(statement, COMPOUND):
            return []
    # a call of a local function that is called only here: main()
    nodes = list(executed([statement]))
    names = [last_name(node.func) for node in nodes if isinstance(node, ast.Call) and step in node_steps(node, facts)]
    repeated = len(names) != 1 or facts.calls[names[0]] > 1 or any(isinstance(node, REPEATED) for node in nodes)
    if repeated or names[0] in facts.model_classes or step not in facts.function_steps.get(names[0], ()):
        return []
    return [facts.functions[names[0]]]


def block_steps(block: list[ast.stmt], facts: Facts) -> set[str]:
    """Return the steps that running a block does."""
    return set().union(*(node_steps(node, facts) for node in executed(block)))


def steps_by_node(tree: ast.Module, facts: Facts) -> dict[ast.AST, set[str]]:
    """Return block_steps of every node in one pass from the leaves up: a chain of a thousand elifs takes no square of that."""
    steps = {}
    for node in reversed(list(ast.walk(tree))):  # ast.walk yields parents before children
        inside = (steps[child] for child in ast.iter_child_nodes(node))
        steps[node] = set() if isinstance(node, FUNCTIONS) else node_steps(node, facts).union(*inside)
    return steps


def executed(block: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that run when a block runs: all but the functions defined in it."""
    stack = list(block)
    while stack:
        node = stack.pop()
        if not isinstance(node, FUNCTIONS):
            yield node
            stack += ast.iter_child_nodes(node)


def node_steps(node: ast.AST, facts: Facts) -> set[str]:
    """Return the steps that a single node does: an import, an assignment or a call."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return set() if getattr(node, "module", None) == "__future__" else {IMPORTS}
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
            return assignment_steps(node, facts)
        case ast.Call(func=func):
            is_local = isinstance(func, ast.Name) and func.id in facts.functions.keys() - facts.model_classes
            known = set() if is_local else call_steps(node, facts)
            return known or facts.function_steps.get(last_name(func), set())
    return set()


def assignment_steps(node: ast.Assign | ast.AugAssign | ast.AnnAssign, facts: Facts) -> set[str]:
    """Take `X = df[columns]`, if it does nothing else, as features, `model = Anything()` as a model if fitted."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    nodes = [part for part in ast.walk(node) if part is not node]
    if isinstance(node.value, ast.Call) and any(dotted(target) in facts.fitted for target in targets):
        return {MODEL}
    if any(isinstance(part, ast.Subscript) for part in nodes) and not any(node_steps(part, facts) for part in nodes):
        return {FEATURES}
    return set()


def call_steps(call: ast.Call, facts: Facts) -> set[str]:
    """Return the steps that the name of a called function or method tells."""
    name, receiver = last_name(call.func), getattr(call.func, "value", None)
    if name in ("fit", "partial_fit"):
        maker = last_name(receiver.func) if isinstance(receiver, ast.Call) else ""
        return {FEATURES if dotted(receiver) in facts.transformers or NOT_A_MODEL.fullmatch(maker) else TRAINING}
    if name == "open":
        return open_steps(call)
    steps = {step for step, pattern in CALLS.items() if pattern.fullmatch(name)}
    if name == "train":  # lightgbm.train(parameters, data) does both; torch's model.train() is a switch
        return {MODEL, TRAINING} if len(call.args) + len(call.keywords) > 1 else set()
    if name in facts.model_classes:
        steps.add(MODEL)
    if dotted(call.func) in facts.models:  # torch: model(x)
        steps.add(PREDICTION)
    if SAVED in steps and not is_submission(call, name):
        steps.discard(SAVED)
    return steps


def open_steps(call: ast.Call) -> set[str]:
    """Reading a file is loading data; opening one for writing saves the submission, unless it is named otherwise."""
    values = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
    modes = [mode for mode in modes if re.fullmatch("[rwaxbt+]{1,3}", mode)]
    if not modes or "r" in modes[-1]:
        return {DATA}
    return {SAVED} if is_submission(call, "open") else set()


def is_submission(call: ast.Call, name: str) -> bool:
    """Tell whether a writing call may write the submission: its path is not spelled out, or says so."""
    if name in ("write", "writerow", "writerows", "write_text"):
        return not dotted(getattr(call.func, "value", None)).startswith("sys.std")
    path = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg in ("path_or_buf", "file"))]
    constants = [part.value for value in path for part in ast.walk(value) if isinstance(part, ast.Constant)]
    texts = [text for text in constants if isinstance(text, str)]
    return bool(path) and (not texts or any("submission" in text.lower() for text in texts))


def last_name(node: ast.expr) -> str:
    """Return `read_csv` for `pd.read_csv`."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def dotted(node: ast.AST | None) -> str:
    """Return `self.model` for the node of self.model, "" for anything but names and attributes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
