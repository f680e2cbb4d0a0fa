"""Frame of every page, with style and script.

Law: text from the cluster gets into a page only by ``text``. A page has no inline style and no inline script: the header
Content-Security-Policy forbids both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from urllib.parse import urlencode

_HEADING = re.compile(r"<h2([^>]*)>(.*?)</h2>")

TABS = (("/", "Overview"), ("/logs", "Logs"), ("/ledgers", "Ledgers"), ("/time", "Time"), ("/what-if", "What if"))
"""Path and title of each tab."""


def text(value: object) -> str:
    """Any value escaped for HTML text and for attributes in double quotes."""
    return escape(str(value))


def part(name: str, content: str, label: str = "", *, still: bool = False) -> str:
    """A part of a page, replaced by the script when it changes. ``content`` is HTML. ``still``: the part depends on the page's
    address only, so a page with still parts only is not polled."""
    heading = f'<h2 id="{name}-title">{text(label)}</h2>' if label else ""
    named = f' aria-labelledby="{name}-title"' if label else ""
    live = 'data-live="still"' if still else "data-live"
    return f'<section id="{name}" {live}{named}>{heading}{content}</section>'


def command(line: str) -> str:
    return f"<code>{text(line)}</code>"


def link(path: str, words: object, name: str, /, **query: object) -> str:
    """A link within the console. ``name`` is unique on the page, so the link keeps the focus when its part is replaced."""
    asked = f"?{urlencode(query)}" if query else ""
    return f'<a id="{text(name)}" href="{text(path + asked)}">{text(words)}</a>'


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str] = ()) -> str:
    """A table within the part ``name``. Cells are HTML; a row's first cell is its heading. ``numbers``: right-aligned columns."""
    kinds = dict.fromkeys(numbers, ' class="number"')
    heads = "".join(f'<th role="columnheader" scope="col"{kinds.get(one, "")}>{text(one)}</th>' for one in columns)
    told = "".join(
        f'<tr role="row"><th role="rowheader" scope="row">{first}</th>'
        + "".join(
            f'<td role="cell" data-name="{text(column)}" class="{"number" if column in kinds else ""}'
            f'{"" if cell else " empty"}">{cell}</td>'
            for column, cell in zip(columns[1:], cells, strict=True)
        )
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f'<div class="table" id="{name}-table" tabindex="0" role="region" aria-labelledby="{name}-title">'
        f'<table role="table"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{told}</tbody></table></div>'
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and values. The values are HTML."""
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{value}</dd>' for name, value in pairs)}</dl>"


def moment(time_ms: int) -> str:
    """A time in ms since 1970 as HTML: UTC, in seconds."""
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return text(f"{time_ms} ms since 1970")
    return f'<time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%Y-%m-%d %H:%M:%S}</time>'


def page(cluster: str, tab: str, content: str, title: str = "") -> bytes:
    """A whole page under the tab ``tab``, a path of TABS. ``content`` is HTML. ``title``: "" takes the tab's title."""
    title = title or next(name for where, name in TABS if where == tab)
    if "<h1" not in content:
        # Each page needs one heading of the first level: its first part's heading becomes it.
        content = _HEADING.sub(r"<h1\1>\2</h1>", content, count=1)
    tabs = "".join(
        f'<a href="{where}"{" aria-current=page" if where == tab else ""}>{text(name)}</a>' for where, name in TABS
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(title)}: {text(cluster)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/console.css">'
        '<script src="/console.js" defer></script><noscript><meta http-equiv="refresh" content="5"></noscript></head><body>'
        f'<a class="skip" href="#main">To the content</a><header><strong>Bookspark</strong> <span>{text(cluster)}</span>'
        f'<nav aria-label="Pages">{tabs}</nav></header><p id="connection" role="status"></p>'
        f'<main id="main" tabindex="-1">{content}</main><footer class="soft">Times are in UTC.</footer></body></html>\n'
    ).encode()


@cache
def asset(name: str) -> bytes:
    return (files("bookspark.operations.console") / name).read_bytes()
