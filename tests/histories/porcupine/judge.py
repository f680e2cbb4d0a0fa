"""Histories judged by Porcupine, an independent checker of linearizability (github.com/anishathalye/porcupine).

Law: the checker gets only the calls and answers of clients, and a ledger model in a page of Go (``checker/main.go``). It needs Go
and access to the module; ``built`` is None elsewhere.

Source: Wing and Gong, "Testing and Verifying Concurrent Objects"; Lowe, "Testing for Linearizability".
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bookspark.support.cache_folder import cache_folder
from bookspark.testing.history import Event, EventKind
from tests.system.many_writers.append_history import Append, Outcome

_CHECKER = Path(__file__).parent / "checker"
_BUILD_SECONDS = 600.0


class Operation(NamedTuple):
    """An operation of a client on a ledger or a lane of a log: ``kind`` and ``at`` give the operation, ``call`` and
    ``answered`` its interval. Operations with overlapping intervals count as concurrent."""

    object: str
    kind: str
    """``append`` entry ``at``; ``read`` it; see it ``absent``, or ``confirmed``; see the object ``closed`` at it; be ``refused``
    because there are not exactly ``at`` entries."""
    at: int
    value: str = ""
    call: int = 0
    answered: int = 0
    """0: unanswered. The append may have taken effect, may still do so, or never."""


class Verdict(NamedTuple):
    """Porcupine's verdict. ``unknown``: objects for which time ran out."""

    operations: int
    objects: int
    illegal: list[str]
    unknown: list[str]


@cache
def built() -> Path | None:
    """The checker, or None without Go or without access to the module."""
    go = shutil.which("go")
    if go is None:
        return None
    program = cache_folder() / "porcupine" / "checker"
    program.parent.mkdir(parents=True, exist_ok=True)
    if subprocess.run([go, "mod", "download"], cwd=_CHECKER, capture_output=True, timeout=_BUILD_SECONDS).returncode:
        return None
    subprocess.run([go, "build", "-o", program, "."], cwd=_CHECKER, check=True, timeout=_BUILD_SECONDS)
    return program


def judge(program: Path, operations: Iterable[Operation], seconds: float) -> Verdict:
    """Judge the operations of each object, within ``seconds`` for all of them."""
    lines = "\n".join(json.dumps(one._asdict()) for one in operations)
    done = subprocess.run(
        [program, str(seconds)], input=lines, capture_output=True, text=True, check=True, timeout=2 * seconds + 60
    )
    return Verdict(**json.loads(done.stdout))


def of_ledgers(events: Sequence[Event]) -> list[Operation]:
    """The operations of a ``History``. A present entry stays present, so its observation takes effect when recorded; an absence
    was requested just behind event ``since``."""
    answered = {
        (event.ledger_id, event.entry_id): 2 * event.number for event in events if event.kind is EventKind.ACKED
    }
    found = []
    for event in events:
        name, at, now = f"ledger {event.ledger_id}", event.entry_id, 2 * event.number
        match event.kind:
            case EventKind.APPENDED:
                end = answered.get((event.ledger_id, at), 0)
                found.append(Operation(name, "append", at, event.payload.hex(), now, end))
            case EventKind.READ:
                found.append(Operation(name, "read", at, event.payload.hex(), now, now))
            case EventKind.ABSENT:
                found.append(Operation(name, "absent", at, "", 2 * event.since + 1, now))
            case EventKind.LAC if at >= 0:
                found.append(Operation(name, "confirmed", at, "", now, now))
            case EventKind.CLOSED | EventKind.CLOSED_BY_WRITER:
                found.append(Operation(name, "closed", at, "", now, now))
    return found


def of_lane(name: str, lane: Sequence[bytes], appends: Iterable[Append], excused: Iterable[bytes]) -> list[Operation]:
    """The appends to a lane whose final rows are ``lane``. ``excused``: refusals that prove nothing about the lane."""
    places, left_out, found = {value: place for place, value in enumerate(lane)}, set(excused), []
    for one in appends:
        call, answered = one.called + 1, (one.answered or 0) + 1
        if one.outcome is Outcome.REFUSED:
            if one.value not in left_out and one.expect is not None:
                found.append(Operation(name, "refused", one.expect, "", call, answered))
        elif one.outcome is Outcome.APPENDED:
            found.append(Operation(name, "append", one.position, one.value.hex(), call, answered))
        elif one.value in places:
            # The append was never answered but is present: it took effect at some time.
            found.append(Operation(name, "append", places[one.value], one.value.hex(), call))
    end = 2 + max((max(one.called, one.answered or 0) for one in appends), default=0)
    found += (Operation(name, "read", place, value.hex(), end, end) for value, place in places.items())
    return found
