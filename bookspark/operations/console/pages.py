"""Templates of the pages, and the values that templates show.

Law: text from the cluster gets into a page only through ``html`` or a template, and both escape it. A page has no inline style
and no inline script: the header Content-Security-Policy forbids both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import urlencode

from bookspark.operations.why.facts import Answer, Severity
from bookspark.support.extras import extra_needed

with extra_needed("the console"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup as Markup
    from markupsafe import escape

KINDS = {Severity.UNDER_WAY: "busy", Severity.TROUBLE: "busy", Severity.DANGER: "bad"}
"""Classes of the style by severity."""
_SEVERITIES = {Severity.UNDER_WAY: "under way", Severity.TROUBLE: "trouble", Severity.DANGER: "danger"}

TABS = (
    ("/", "Overview"),
    ("/logs", "Logs"),
    ("/readers", "Readers"),
    ("/ledgers", "Ledgers"),
    ("/time", "Time"),
    ("/what-if", "What if"),
)
"""Path and title of each tab."""


# -- Values of a page


class Text(NamedTuple):
    """Words with a class of the style, a link, or an explanation."""

    words: object
    kind: str = ""
    """``good``, ``busy``, ``bad`` or ``soft``; "": as the words around it."""
    path: str = ""
    """Address within the console, see ``address``."""
    name: str = ""
    """Id of the link, unique on the page: the link keeps the focus when its part is replaced."""
    title: str = ""
    """Explanation, for example of an abbreviation."""


class Time(NamedTuple):
    """A time in ms since 1970, shown in UTC; the script adds the browser's time."""

    ms: int


class Command(NamedTuple):
    """A line to type, with a button that copies it."""

    line: str


class Lines(NamedTuple):
    """Values below each other."""

    items: Sequence[object]


class Meter(NamedTuple):
    """A part of a whole as a bar."""

    part: float
    whole: float
    label: str


class Pairs(NamedTuple):
    """Names and values."""

    pairs: Sequence[tuple[str, object]]


class Plain(NamedTuple):
    """Text with its spaces and line breaks."""

    words: str
    left: int = 0
    """Characters that are not shown."""


def html(value: object) -> Markup:
    """Any value as HTML. A list or tuple: its items one after the other."""
    match value:
        case None:
            return Markup()
        case Text():
            return _text(value)
        case Time(ms):
            return _time(ms)
        case Command(line):
            # Each line is once on a page, or its buttons do the same.
            button = Markup('<button type="button" class="copy" aria-label="Copy: {0}" title="Copy">Copy</button>')
            return Markup('<span class="command"><code>{}</code>{}</span>').format(line, button.format(line))
        case Lines(items):
            return Markup("<ul>{}</ul>").format(Markup().join(Markup("<li>{}</li>").format(html(one)) for one in items))
        case Meter(part, whole, label):
            told = Markup('<meter min="0" max="{}" value="{}" aria-label="{}" title="{}"></meter>')
            return told.format(max(1, whole), part, label, label)
        case Pairs(pairs):
            found = (Markup("<dt>{}</dt><dd>{}</dd>").format(name, html(shown)) for name, shown in pairs)
            return Markup("<dl>{}</dl>").format(Markup().join(found))
        case Table():
            return render("table.html", table=value)
        case Plain(words, left):
            more = Markup('<span class="soft"> … {:,} more characters</span>').format(left) if left else Markup()
            return Markup("<pre>{}{}</pre>").format(words, more)
        case tuple() | list():
            return Markup().join(map(html, value))
        case _:
            return escape(value)


def _text(value: Text) -> Markup:
    words = html(value.words)
    if value.title:
        words = Markup('<abbr title="{}">{}</abbr>').format(value.title, words)
    if value.path:
        named = Markup(' id="{}"').format(value.name) if value.name else Markup()
        words = Markup('<a{} href="{}">{}</a>').format(named, value.path, words)
    return Markup('<b class="{}">{}</b>').format(value.kind, words) if value.kind else words


def _time(ms: int) -> Markup:
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return escape(f"{ms} ms since 1970")
    return Markup('<time datetime="{:%Y-%m-%dT%H:%M:%SZ}">{:%Y-%m-%d %H:%M:%S}</time>').format(at, at)


def address(path: str, /, **query: object) -> str:
    """An address within the console."""
    return f"{path}?{urlencode(query)}" if query else path


# -- Tables


class Column(NamedTuple):
    name: str
    number: bool = False
    minor: bool = False
    """Not shown on a phone before somebody asks for all columns."""
    title: str = ""
    path: str = ""
    """Address that sorts by this column; "": the script sorts the rows of the page."""
    sorted: bool = False


class Cell(NamedTuple):
    shown: object = ""
    order: float | str | None = None
    """Place in the order of the column; None: that of the shown text."""


class Table(NamedTuple):
    """A table within the part ``name``. The first cell of a row is its heading."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    """Cells: ``Cell``, or a value for ``html``."""


def columns(*names: str, numbers: Iterable[str] = (), minor: Iterable[str] = ()) -> list[Column]:
    right, hidden = set(numbers), set(minor)
    return [Column(name, name in right, name in hidden) for name in names]


# -- Templates


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("bookspark.operations.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["html"] = html
    found.filters["cell"] = lambda value: value if isinstance(value, Cell) else Cell(value)
    found.filters["command"] = lambda line: html(Command(line))
    found.filters["severity"] = lambda one: (KINDS[one], _SEVERITIES[one])
    return found


def render(template: str, /, **values: object) -> Markup:
    """A template's text. Values without a template of their own are shown by the filter ``html``."""
    return Markup(_templates().get_template(template).render(values))


def part(name: str, shown: object, label: str = "", *, still: bool = False) -> Markup:
    """A part of a page, replaced by the script when it changes. ``label``: its heading; "": the page's title names it. ``still``:
    the part depends on the page's address only, so a page with still parts only is not polled."""
    return render("part.html", name=name, shown=shown, label=label, still=still)


def answers(found: Iterable[Answer]) -> Markup:
    """Answers of ``bookspark why`` in their order, or "None."."""
    return render("answers.html", answers=list(found), otherwise="None.")


def page(cluster: str, tab: str, content: object, title: str = "", *, heading: bool = True) -> bytes:
    """A whole page under the tab ``tab``, a path of TABS. ``title``: "" takes the tab's title. ``heading``: the title stands over
    the content too, which has no heading of the first level."""
    title = title or next((name for where, name in TABS if where == tab), "")
    return render(
        "frame.html", cluster=cluster, tab=tab, tabs=TABS, title=title, heading=heading, content=content
    ).encode()


STATIC: Mapping[str, str] = {
    "/console.css": "text/css; charset=utf-8",
    "/console.js": "text/javascript; charset=utf-8",
    "/uplot.css": "text/css; charset=utf-8",
    "/uplot.js": "text/javascript; charset=utf-8",
}
"""Type of each file that pages load."""


@cache
def static(path: str) -> bytes:
    return (files("bookspark.operations.console") / "static" / path[1:]).read_bytes()
