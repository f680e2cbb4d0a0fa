"""A violation as a page: the law, the moves as a sequence diagram, and the same story as text.

Law: the page is self-contained, without scripts, fonts or pictures from elsewhere. It shows only facts of ``tell`` and
``Sequence``, and every line of the drawing has its words.

The drawing has a column for the metadata store, each client and each bookie, and a row with one event for each step. A message
goes down from its sending row to its arrival row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from html import escape
from importlib.resources import files

from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.search.calm import calm_down
from bookspark.lab.simulation.sequence import METADATA_LANE, Arrow, Drawing, Sequence
from bookspark.lab.simulation.state import Move
from bookspark.lab.simulation.story import tell
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World

_CODE = re.compile("``(.*?)``")
_ROW, _TOP, _MARGIN, _LANE = 28, 44, 92, 168
_LABEL_MAX = 44
"""In characters; the whole text is in the row's title and below."""


def story_page(world: World, moves: Seq[Move], violation: Violation, command: str) -> str:
    """The page as HTML. ``command``: the command that reproduces the violation."""
    lines = [line.split(". ", 1)[1] for line in tell(world, moves)[: len(moves)]]
    options = f"The options: <code>{escape(world.options.arguments() or 'the defaults')}</code>"
    return drawn_page(violation, law_of(violation.invariant), Sequence(world, moves), lines, options, command)


def law_of(invariant: str) -> str:
    """The law of a checker: its docstring."""
    of = CHECKERS.get(invariant) or inspect.getmodule(calm_down)
    return inspect.getdoc(of) or ""


def drawn_page(
    violation: Violation, law: str, drawing: Drawing, lines: Seq[str], beside: str, command: str, sound: bool = False
) -> str:
    """A page about ``drawing``, with its steps in words in ``lines``. ``beside``: HTML beside the key. ``sound``:
    ``violation`` states that nothing is wrong."""
    items = "".join(f'<li id="step{number}">{escape(line)}</li>' for number, line in enumerate(lines, 1))
    return _PAGE.format(
        title=escape(violation.invariant.replace("_", " ")),
        what=escape(violation.what),
        law=_CODE.sub(r"<code>\1</code>", "".join(f"<p>{escape(part)}</p>" for part in law.split("\n\n"))),
        picture=_picture(drawing, lines, violation),
        items=items,
        command=escape(command),
        beside=beside,
        kind="sound" if sound else "wrong",
        style=files("bookspark.lab.simulation").joinpath("story_page.css").read_text(),
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head><body class="{kind}">
<header><h1>{title}</h1><p class="what">{what}.</p></header>
<main>
<section aria-label="The law"><h2>The law</h2>{law}</section>
<section aria-label="What happened"><h2>What happened</h2>
<p class="key"><b class="request">━</b> request <b class="answer">╌</b> answer <b class="lost">×</b> nobody waits for it any more
<b class="open">○</b> under way at the end. {beside}</p>
<div class="picture" tabindex="0" role="region" aria-label="Sequence diagram; the text below says the same">{picture}</div>
</section>
<section aria-label="In words"><h2>In words</h2><ol>{items}</ol><p class="what">{what}.</p>
<p>To find it again: <code>{command}</code></p></section>
</main></body></html>
"""


def _picture(sequence: Drawing, lines: Seq[str], violation: Violation) -> str:
    width = _MARGIN + _LANE * len(sequence.lanes)
    bottom = _TOP + _ROW * (len(lines) + 1)
    return (
        f'<svg viewBox="0 0 {width} {bottom + _ROW}" width="{width}" height="{bottom + _ROW}" role="img" '
        f'aria-label="{escape(violation.invariant)}, {len(lines)} steps">'
        f"{''.join(_rows(lines, width))}{''.join(_lanes(sequence, bottom))}"
        f"{''.join(_arrow(one, len(lines)) for one in sequence.arrows)}"
        f"{''.join(_events(sequence, lines))}"
        f'<text class="end" x="8" y="{bottom + 8}">→ {escape(violation.what)}</text></svg>'
    )


def _rows(lines: Seq[str], width: int) -> Iterator[str]:
    for step, line in enumerate(lines, 1):
        y = _y(step) - _ROW / 2
        yield (
            f'<a href="#step{step}"><rect class="row{step % 2}" x="0" y="{y:g}" width="{width}" height="{_ROW}">'
            f'<title>{step}. {escape(line)}</title></rect><text class="number" x="8" y="{_y(step) + 4}">{step}</text></a>'
        )


def _lanes(sequence: Drawing, bottom: int) -> Iterator[str]:
    for lane, name in enumerate(sequence.lanes):
        yield (
            f'<line class="lane" x1="{_x(lane)}" y1="{_TOP - 10}" x2="{_x(lane)}" y2="{bottom - _ROW / 2:g}"/>'
            f'<text class="name" x="{_x(lane)}" y="24">{escape(name)}</text>'
        )


def _arrow(arrow: Arrow, last: int) -> str:
    x1, x2, y1 = _x(arrow.sender), _x(arrow.receiver), _y(arrow.sent)
    kind = "answer" if arrow.is_answer else "request"
    title = f"<title>{escape(arrow.what)}, sent at step {arrow.sent}</title>"
    if arrow.arrived is not None:
        y2, side = _y(arrow.arrived), -1 if x2 > x1 else 1
        return (
            f'<g class="{kind}">{title}<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
            f'<path d="M{x2} {y2} l{side * 9} -4 v8 z"/></g>'
        )
    # Ends half-way: it did not arrive.
    x2 = (x1 + x2) // 2
    y2 = _y(min(arrow.given_up or last, arrow.sent + 2))
    mark = "○" if arrow.given_up is None else "×"
    kind += " open" if arrow.given_up is None else " lost"
    return (
        f'<g class="{kind}">{title}<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
        f'<text x="{x2}" y="{y2 + 5}">{mark}</text></g>'
    )


def _events(sequence: Drawing, lines: Seq[str]) -> Iterator[str]:
    arriving = {one.arrived: one for one in sequence.arrows if one.arrived is not None}
    for step, (lane, line) in enumerate(zip(sequence.places, lines, strict=True), 1):
        x, y = _x(lane), _y(step)
        if step in sequence.asked and lane != METADATA_LANE:
            yield f'<line class="asks" x1="{x}" y1="{y}" x2="{_x(METADATA_LANE)}" y2="{y}"/>'
        yield f'<circle class="event" cx="{x}" cy="{y}" r="4"/>'
        arrow = arriving.get(step)
        label = _short(line, sequence.lanes[lane])
        if arrow is not None:
            label = "; ".join((arrow.what, *line.split("; ")[1:])) if arrow.is_answer else arrow.what
        left = (arrow is not None and arrow.sender < lane) or lane == len(sequence.lanes) - 1
        place = f'x="{x - 14}" class="label left"' if left else f'x="{x + 9}" class="label"'
        yield f'<text {place} y="{y - 5}">{escape(_cut(label))}<title>{step}. {escape(line)}</title></text>'


def _short(line: str, name: str) -> str:
    """The sentence without its subject and its details."""
    for who in (f"the {name} ", f"the {name}'s ", f"{name} ", "the "):
        line = line.removeprefix(who)
    return line.split(" (")[0].split(";")[0].split(":")[0]


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_MAX else f"{label[: _LABEL_MAX - 1]}…"


def _x(lane: int) -> int:
    return _MARGIN + _LANE * lane


def _y(step: int) -> int:
    return _TOP + _ROW * step
