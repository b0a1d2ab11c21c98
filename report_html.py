"""The HTML of report.py: small functions that return pieces of the page. All text enters through `text`, which escapes it."""

import html
import re

PROGRAM_CHARS = 8000  # of one text in the page; keeps it below 3 MiB
# Invisible or able to reorder what is read, or a terminal's command: shown by number. Newline and tab stay.
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --page: #fcfcfd; --card: #f2f3f6; --line: #dcdfe4;
  --good: #0f8a5f; --bad: #c92a2f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a0a5ad; --page: #121316; --card: #1c1e23;
  --line: #34373e; --good: #3dd68c; --bad: #ff8589; } }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 5rem; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.wide { overflow-x: auto; } img { width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
.grid th, .grid td { white-space: nowrap; }
code, pre { font: .82rem/1.5 ui-monospace, Menlo, Consolas, monospace; }
pre { margin: .5rem 0; padding: .8rem 1rem; overflow-x: auto; background: var(--card); border-radius: 6px; tab-size: 4; }
details { margin: .4rem 0; border: 1px solid var(--line); border-radius: 8px; padding: .45rem .9rem; }
summary { cursor: pointer; } summary span { margin-right: 1rem; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def visible(value: object) -> str:
    """Return any text with its invisible characters as numbers; a terminal that shows it obeys none of them."""
    return UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", str(value).replace("\r\n", "\n"))


def text(value: object) -> str:
    """Return any text as HTML text, safe in an element and in an attribute, its invisible characters as numbers."""
    return html.escape(visible(value), quote=True)


def cut(value: str, limit: int) -> str:
    """Return a text of at most about `limit` characters: its beginning, its end, and how much is left out."""
    if len(value) <= limit:
        return value
    return f"{value[: limit // 2]}\n... {len(value) - limit} characters left out ...\n{value[-limit // 2 :]}"


def number(value: object) -> str:
    return text(f"{value:.4f}" if isinstance(value, float) else "–" if value is None else value)


def table(head: list[str], rows: list[list]) -> str:
    """Return an HTML table; every cell is escaped here."""
    top = "<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{number(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide{" grid" if head else ""}"><table>{top}{body}</table></div>'


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{text(title)}</h2>{''.join(parts)}</section>\n"


def note(value: str) -> str:
    return f'<p class="soft">{text(value)}</p>'


def missing(what: str, command: str) -> str:
    return f'<p class="soft">{text(what)} To make it: <code>{text(command)}</code></p>'


def figure(data_uri: str, alt: str) -> str:
    return f'<img src="{data_uri}" alt="{text(alt)}">'


def code(value: str, limit: int = PROGRAM_CHARS) -> str:
    return f"<pre><code>{text(cut(value, limit))}</code></pre>"


def from_markdown(source: str) -> str:
    """Return the HTML of the Markdown that this repository writes: headings, tables, lists and paragraphs."""
    parts, rows = [], []
    for line in [*source.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            rows += [] if all(re.fullmatch(":?-+:?", cell) for cell in cells) else [cells]
            continue
        parts += [table(rows[0], rows[1:])] if rows else []
        rows = []
        if line.startswith("#"):
            parts.append(f"<h3>{text(line.lstrip('# '))}</h3>")
        elif line.strip():
            parts.append("<p>" + re.sub("`([^`]+)`", r"<code>\1</code>", text(line.removeprefix("- "))) + "</p>")
    return "".join(parts)


def whole_page(title: str, body: str) -> str:
    """Return the page around a body, in ASCII. The browser is told to run no script and to fetch nothing."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{text(title)}</title><style>{STYLE}</style>"
    )
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}</body></html>\n'
    return page.encode("ascii", "xmlcharrefreplace").decode()
