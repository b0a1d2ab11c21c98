"""Put milestone prints into a program, and read them back from its output.

A failed program earns a little for each step it completed, so that a policy whose programs all fail has something to
climb. After each step a statement is inserted that writes the line `<token> DATA_LOADED`; the token is drawn after the
program was written, so printing the word is worth nothing.

    instrumented, accepted = instrument(program, token)      # program -> program
    reached(execution.stdout, token)                         # output -> ["IMPORTS_DONE", "DATA_LOADED", ...]

The syntax tree tells where steps end (steps.py). A language model may propose other places; its text never runs and it
never sees the token: a proposal says after which statements to print, and is refused unless it pays no more.

What is covered: the inserted statements only write; all else is the author's own text and the same syntax tree, with
its line numbers (each print that follows a whole loop, `if` or function adds a line). Any text is taken: what does not
compile, or cannot be instrumented safely, comes back as it is.
What is not: a running program can read the token from its own source; one that closed file descriptor 1, or replaced
os.write, fails at the next print.
"""

import ast
import hashlib
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator

from steps import COMPOUND, FUNCTIONS, MILESTONES, find_all_places, parse

PLACEHOLDER = "TOKEN"  # stands for the token in a proposal
BLOCKS = ("body", "orelse", "finalbody")  # lists of statements, where a node has them
EXITS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
MAY_BREAK_PRINTS = re.compile(  # names by which a statement could end the program or take stdout from the next print
    r"os|sys|builtins|__\w+|exec|eval|open|ctypes|importlib|globals|vars|setattr|close\w*|dup2?|_?exit|quit"
)

# markers


def new_token(seed: str | None = None) -> str:
    """Return a token of 16 hex digits: random, or derived from seed, which must hold something programs cannot know."""
    if seed is None:
        return secrets.token_hex(8)
    return hashlib.sha256(seed.encode()).hexdigest()[:16]


def marker(milestone: str, token: str) -> str:
    """Return the statement that prints one milestone.

    It writes to the file descriptor: programs shadow print, replace, redirect or detach sys.stdout, and buffer. The
    line breaks on both sides keep the marker a line of its own after output that has no newline yet.
    """
    return f'__import__("os").write(1, b"\\n{token} {milestone}\\n")'


def reached(output: str, token: str) -> list[str]:
    """Return the distinct milestones printed in output, in the order of MILESTONES.

    Only whole lines count, so a quoted source line does not. Output that was cut (the sandbox keeps head and tail) has
    lost the milestones of the part that was dropped.
    """
    found = set(re.findall(rf"^{re.escape(token)} (\w+)\r?$", output, flags=re.MULTILINE))
    return [milestone for milestone in MILESTONES if milestone in found]


def strip_markers(output: str, token: str) -> str:
    """Return output as the program alone would have printed it."""
    return re.sub(rf"\n{re.escape(token)} (?:{'|'.join(MILESTONES)})\n", "", output)


# acceptance


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a tree, in the order of ast.walk. They may be changed in place."""
    for node in ast.walk(tree):
        for name in BLOCKS:
            if isinstance(block := getattr(node, name, None), list):  # a lambda's body is an expression
                yield block


def milestone_of(statement: ast.stmt, token: str) -> str | None:
    """Return the milestone if a statement is one that marker() writes with this token, however it is formatted."""
    match statement:
        case ast.Expr(ast.Call(args=[_, ast.Constant(bytes() as line)])):
            milestone = line.decode(errors="replace").removeprefix(f"\n{token} ").removesuffix("\n")
            if milestone in MILESTONES and ast.dump(statement) == ast.dump(ast.parse(marker(milestone, token)).body[0]):
                return milestone
    return None


def find_markers(tree: ast.Module, instrumented: ast.Module, token: str) -> list[tuple[ast.stmt, str]] | None:
    """Return after which statements of `tree` the instrumented tree prints which milestones; None if the rest differs.

    A marker that opens a block is refused: it completes no step, it would unseat a docstring, and an `else` or `finally`
    of nothing but markers would be gone with them. Removes the markers from `instrumented`.
    """
    try:
        found = []  # of each block: (statements before the marker, milestone)
        for block in blocks(instrumented):
            kept, markers = [], []
            for statement in block:
                milestone = milestone_of(statement, token)
                kept, markers = (kept, [*markers, (len(kept), milestone)]) if milestone else ([*kept, statement], markers)
            block[:] = kept
            found.append(markers)
        if ast.dump(tree) != ast.dump(instrumented):
            return None
    except (RecursionError, ValueError):  # ValueError: a hexadecimal literal too long to print as a decimal number
        return None
    if any(before == 0 for markers in found for before, _ in markers):
        return None
    pairs = zip(blocks(tree), found, strict=True)
    return [(block[before - 1], milestone) for block, markers in pairs for before, milestone in markers]


def same_program(original: str, instrumented: str, token: str) -> bool:
    """Tell whether instrumented is the original but for markers that follow a statement, compared as syntax trees."""
    before, after = parse(original), parse(instrumented)
    return before is not None and after is not None and find_markers(before, after, token) is not None


def pays_no_more(tree: ast.Module, places: list[tuple[ast.stmt, str]]) -> bool:
    """Tell whether markers at these places pay what the syntax tree's own would, later if at all.

    Each marker slides up, within its block, to the nearest statement that completes a step. All must then be where the
    syntax tree has them: none before its step, repeated, in a loop, missing, or behind the end of the next step. They
    do not slide over what may keep them from printing.
    """
    due, proposed = find_all_places(tree), defaultdict(list)
    for statement, step in places:
        proposed[statement].append(step)
    ends = {statement for statement, _ in due}
    local = {node.name for node in ast.walk(tree) if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    slid = []
    for block in blocks(tree):
        end = None
        for statement in block:
            if statement in ends:
                end = statement
            elif end and (isinstance(statement, EXITS) or may_break_prints(statement, local)):
                end = None
            slid += [(end, step) for step in proposed[statement]]
    return Counter(slid) == Counter(due)


def may_break_prints(statement: ast.stmt, local: set[str]) -> bool:
    """Tell whether a statement uses one of the program's own functions, or names what could end it or close its stdout."""
    nodes = list(ast.walk(statement))
    used = {getattr(node, name, None) for node in nodes for name in ("id", "attr")}
    bound = {getattr(node, name, None) for node in nodes for name in ("name", "asname", "module")}
    risky = any(MAY_BREAK_PRINTS.fullmatch(name.split(".")[0]) for name in (used | bound) if isinstance(name, str))
    return risky or bool(used & local)


def instrument(program: str, token: str, proposal: str | None = None) -> tuple[str, bool]:
    """Return the instrumented program and whether the proposal was accepted.

    proposal: the program with markers of PLACEHOLDER, as a language model wrote it. It counts only if it is the same
    program and pays no more than the syntax tree's places, which serve otherwise, as they do without a proposal.
    """
    if proposal is not None:
        tree, proposed = parse(program), parse(proposal)
        places = find_markers(tree, proposed, PLACEHOLDER) if tree and proposed else None
        if places is not None and pays_no_more(tree, places):
            instrumented = insert_checked(program, tree, places, token)
            if instrumented is not None:
                return instrumented, True
    return instrument_ast(program, token), False


def instrument_ast(program: str, token: str) -> str:
    """Insert a print after each step found in the syntax tree; return the program unchanged where that is not safe."""
    tree = parse(program)
    instrumented = None if tree is None else insert_checked(program, tree, find_all_places(tree), token)
    return program if instrumented is None else instrumented


def insert_checked(program: str, tree: ast.Module, places: list[tuple[ast.stmt, str]], token: str) -> str | None:
    """Return the author's text with the markers at these places of its tree; None if they do not come to lie there."""
    if not token.isalnum():
        raise ValueError(f"token {token!r} must be letters and digits: use new_token()")
    instrumented = insert(program, places, token)
    after = parse(instrumented)
    found = None if after is None else find_markers(tree, after, token)
    return instrumented if found is not None and Counter(found) == Counter(places) else None


def insert(program: str, places: list[tuple[ast.stmt, str]], token: str) -> str:
    """Return the program with the markers of each step after its statement, in the order given.

    After a simple statement they share its line (`x = f(); <marker>  # comment`), which needs no indentation and keeps
    line numbers; after a compound one they get a line of their own.
    """
    markers = defaultdict(list)
    for statement, step in places:
        markers[statement].append(marker(step, token))
    source = program.encode()  # columns of the syntax tree count UTF-8 bytes
    newline = (re.search(rb"\r\n|\n|\r", source) or [b"\n"])[0]
    lines = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", source)  # as Python's tokenizer splits them
    edits = []
    for statement, texts in markers.items():
        row, column, text = statement.end_lineno - 1, statement.end_col_offset, "; ".join(texts).encode()
        separator = b"; "
        if isinstance(statement, (*COMPOUND, *FUNCTIONS)):
            column = len(lines[row].rstrip(b"\r\n"))
            separator = newline + lines[statement.lineno - 1][: statement.col_offset]
        edits.append((row, column, -statement.col_offset, separator + text))
    for row, column, _, text in sorted(edits, reverse=True):  # from the end; of blocks that end together, outer first
        lines[row] = lines[row][:column] + text + lines[row][column:]
    return b"".join(lines).decode()
