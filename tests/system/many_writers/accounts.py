"""The final check of a log by the journals of all its writers and readers.

Law: each row of the log was appended by a writer, and each acknowledged row is there once, at its acknowledged position. A lane
has one writer, and its rows are in the order of that writer's appends. All observations of readers match the log at the end.
The check knows nothing of the log's implementation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bookspark.logs import LogRow, open_log
from bookspark.store.client import BookKeeper
from bookspark.testing.history import Event, EventKind, History
from tests.histories.porcupine.judge import built, judge, of_lane
from tests.system.many_writers.append_history import Append, Outcome, check, refused_for_nothing
from tests.system.many_writers.journal import lines, lives
from tests.system.many_writers.querying import BATCH_ROWS, BATCH_WRITERS

Lanes = Mapping[int, Sequence[LogRow]]
_ANSWERS = {"ok": Outcome.APPENDED, "refused": Outcome.REFUSED, "failed": Outcome.UNKNOWN}
_PORCUPINE_SECONDS = 120.0


def check_all(
    bookkeeper: BookKeeper,
    folder: Path,
    log: str,
    producers: Sequence[str],
    fed: Mapping[str, int],
    sharers: Sequence[str] = (),
) -> Counter[str]:
    """Check the log; returns counts. ``fed``: the number of rows given to each query. ``sharers``: readers of one group. Raises
    AssertionError."""
    lanes = read_whole(bookkeeper, log)
    counts = Counter({"rows": sum(map(len, lanes.values())), "lanes": len(lanes)})
    lane_by_writer = owners(lanes)
    expected = {job: range(rows) for job, rows in fed.items()} | {
        "batches": rows_of_batches(folder, lanes, lane_by_writer)
    }
    assert lane_by_writer.keys() == {*expected, *producers}, "somebody else wrote, or somebody did not"
    for writer, numbers in expected.items():
        found = [row.value for row in lanes[lane_by_writer[writer]]]
        assert found == [f"{writer} {number}".encode() for number in numbers], (
            f"the rows of {writer}: {different(found)}"
        )
        counts[f"rows of {writer}"] = len(found)
    each_minute = sorted(begun_each_minute(folder))
    counts["batches"] = len(batches(folder))
    counts["batches begun in a minute: fewest"] = each_minute[0]
    counts["batches begun in a minute: median"] = each_minute[len(each_minute) // 2]
    for name in producers:
        rows = lanes[lane_by_writer[name]]
        history = appends(folder, name)
        values = [row.value for row in rows]
        verdict = check(values, history, began(folder, name))
        assert not verdict.violations, f"{name}: {verdict.violations[:3]}"
        if (program := built()) is not None:
            excused = refused_for_nothing(values, history, began(folder, name))
            judged = judge(program, of_lane(name, values, history, excused), _PORCUPINE_SECONDS)
            assert not (judged.illegal or judged.unknown), f"Porcupine says of {name}: {judged}"
            counts["operations that Porcupine judged"] += judged.operations
        counts.update({f"{name}: {what}": count for what, count in verdict.counts.items()})
        counts[f"rows of {name}"] = len(rows)
        if name.startswith("numbers"):
            found = [row.value for row in rows]
            assert found == [f"{name} {number}".encode() for number in range(len(rows))], different(found)
    counts["rows that the tail read"] = tailed(folder, "tail", lanes)
    if sharers:
        counts["rows that the group read"] = shared(folder, sharers, lanes)
    values = Counter(row.value for rows in lanes.values() for row in rows)
    copied = Counter(row.value for rows in read_whole(bookkeeper, "copy").values() for row in rows)
    assert copied == values, (
        f"the copy lacks {list(values - copied)[:3]} and has too many of {list(copied - values)[:3]}"
    )
    counts["rows that a query copied"] = copied.total()
    counts.update(observed(folder, lanes, lane_by_writer, producers))
    return counts


def read_whole(bookkeeper: BookKeeper, log: str) -> Lanes:
    """All rows of each lane that has any. Their numbers have no gaps, and their times do not go back."""
    lanes = defaultdict[int, list[LogRow]](list)
    with open_log(bookkeeper, log).reader() as reader:
        for row in reader:
            rows = lanes[row.lane]
            assert row.position == len(rows), f"{row} comes after {len(rows)} rows"
            assert not rows or row.time_ms >= rows[-1].time_ms, f"{row} is older than {rows[-1]}"
            rows.append(row)
    return lanes


def owners(lanes: Lanes) -> dict[str, int]:
    """The lane of each writer."""
    found: dict[str, int] = {}
    for lane, rows in lanes.items():
        writers = {row.value.split()[0].decode() for row in rows}
        assert len(writers) == 1, f"lane {lane} has rows of {writers}"
        (writer,) = writers
        assert writer not in found, f"{writer} has written lanes {found[writer]} and {lane}"
        found[writer] = lane
    return found


def batches(folder: Path) -> set[int]:
    """The appended batches. The last life finished, so the outcome of each batch is known."""
    return {int(line.words[0]) for path in lives(folder, "batches") for line in lines(path) if line.what == "ok"}


def begun_each_minute(folder: Path) -> list[int]:
    """The number of batches that began in each minute with any."""
    times: dict[str, int] = {}
    for path in lives(folder, "batches"):
        for line in lines(path):
            if line.what == "call":
                times.setdefault(line.words[0], line.time)
    minutes = Counter((time - min(times.values())) // (60 * 10**9) for time in times.values())
    return [minutes[minute] for minute in sorted(minutes)]


def rows_of_batches(folder: Path, lanes: Lanes, lane_by_writer: Mapping[str, int]) -> list[int]:
    """The rows of batches in their required order in the lane: each batch whole, the batches of a writer in its order;
    batches of several writers in the order of their commits."""
    lane = lane_by_writer.get("batches")
    found = [int(row.value.split()[1]) // BATCH_ROWS for row in (lanes[lane] if lane is not None else ())]
    order = list(dict.fromkeys(found))
    assert set(order) == batches(folder), f"too many or too few: {set(order) ^ batches(folder)}"
    for writer in range(BATCH_WRITERS):
        its = [number for number in order if number % BATCH_WRITERS == writer]
        assert its == sorted(its), f"batches of writer {writer} are not in its order: {its}"
    return [row for number in order for row in range(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)]


def began(folder: Path, name: str) -> dict[str, int]:
    """The start of each life of a producer."""
    return {path.name: next(lines(path)).time for path in lives(folder, name) if next(lines(path), None) is not None}


def appends(folder: Path, name: str) -> list[Append]:
    """The appends of a producer, from the journals of its lives. An append repeated under its sequence number is one append:
    it begins with its first call, and takes the response with a position, if there is one."""
    found: dict[bytes, Append] = {}
    for path in lives(folder, name):
        for line in lines(path):
            if line.what == "call":
                number, expect = line.words
                value = f"{name} {number}".encode()
                given = None if expect == "-" else int(expect)
                one = found.setdefault(value, Append(value, line.time, expect=given, writer=path.name))
                if line.time < one.called:
                    # A life that was taken over, and has not noticed it yet, calls after its successor.
                    found[value] = one._replace(called=line.time, writer=path.name)
            elif line.what in _ANSWERS:
                value = f"{name} {line.words[0]}".encode()
                one = found[value]
                if one.outcome is Outcome.UNKNOWN:
                    position = int(line.words[1]) if line.what == "ok" else -1
                    found[value] = one._replace(outcome=_ANSWERS[line.what], answered=line.time, position=position)
            elif line.what == "again":
                value = f"{name} {line.words[0]}".encode()
                one = found[value]
                if one.outcome is Outcome.UNKNOWN:
                    # The row is in the log by now, and its number is its position.
                    found[value] = one._replace(
                        outcome=Outcome.APPENDED, answered=line.time, position=int(line.words[0])
                    )
    return list(found.values())


def tailed(folder: Path, name: str, lanes: Lanes) -> int:
    """Check the rows that a tail read; returns their number."""
    behind = Counter[int]()
    for path in lives(folder, name):
        place = Counter[int]()
        for _, lane, position, value in tail_rows(path):
            row = lanes[lane][position]
            assert row.value == value, f"the tail read {value!r} where {row} is"
            begins = place.get(lane, position)
            assert position == begins <= behind[lane], (
                f"the tail read row {position} of lane {lane} after {behind[lane]}"
            )
            place[lane] = position + 1
            behind[lane] = max(behind[lane], position + 1)
    assert behind == {lane: len(rows) for lane, rows in lanes.items()}, "the tail has not read all rows"
    return behind.total()


def shared(folder: Path, sharers: Sequence[str], lanes: Lanes) -> int:
    """Check the rows that the readers of a group got: together all, and none that is not in the log. Returns how often a row was
    read."""
    found = Counter[tuple[int, int]]()
    for path in (path for name in sharers for path in lives(folder, name)):
        for _, lane, position, value in tail_rows(path):
            assert lanes[lane][position].value == value, f"{path.name} read {value!r} at row {position} of lane {lane}"
            found[lane, position] += 1
    missing = [row[:2] for rows in lanes.values() for row in rows if row[:2] not in found]
    assert not missing, f"the group has not read {len(missing)} rows: {missing[:3]}"
    return found.total()


def tail_rows(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Time, lane, position and value of each row that a life of the tail read."""
    for line in lines(path):
        if line.what == "row":
            lane, position, *value = line.words
            yield line.time, int(lane), int(position), " ".join(value).encode()


def observed(folder: Path, lanes: Lanes, lane_by_writer: Mapping[str, int], producers: Sequence[str]) -> dict[str, int]:
    """Pass the observations of producers and the tail to the checker of histories, in the order of time: each lane as a
    ledger, each row as an entry. No row is read before its append, and an acknowledged or read row has one value forever."""
    events: list[tuple[int, int, Event]] = []
    writers = {lane: writer for writer, lane in lane_by_writer.items()}
    for lane, rows in lanes.items():
        if writers[lane] not in producers:
            events += [(0, 0, Event(EventKind.APPENDED, writers[lane], lane, row.position, row.value)) for row in rows]
    for name in producers:
        lane = lane_by_writer[name]
        places = {row.value: row.position for row in lanes[lane]}
        for one in appends(folder, name):
            place = places.get(one.value, one.position)
            if place >= 0:
                events.append((one.called, 0, Event(EventKind.APPENDED, name, lane, place, one.value)))
            if one.outcome is Outcome.APPENDED and one.answered is not None:
                events.append((one.answered, 1, Event(EventKind.ACKED, name, lane, one.position)))
    for path in lives(folder, "tail"):
        for moment, lane, position, value in tail_rows(path):
            events.append((moment, 1, Event(EventKind.READ, path.name, lane, position, value)))
            events.append((moment, 2, Event(EventKind.LAC, path.name, lane, position)))
    history = History()
    for _, _, event in sorted(events, key=lambda one: one[:2]):
        history.record(event)
    for lane, rows in lanes.items():
        size = sum(len(row.value) for row in rows)
        history.record(Event(EventKind.CLOSED, "the last reader", lane, len(rows) - 1, length=size))
    for violation in history.violations:
        raise AssertionError("\n".join([str(violation), *violation.excerpt]))
    return {f"observed: {kind.value}": count for kind, count in history.counts.items()}


def different(found: Sequence[bytes]) -> str:
    """The first place where rows that should be numbered from 0 are not."""
    times = Counter(found)
    twice = [value for value, count in times.items() if count > 1]
    numbers = [int(value.split()[1]) for value in found]
    wrong = next((place for place, number in enumerate(numbers) if place != number), len(numbers))
    return f"{len(found)} rows, {len(twice)} of them twice ({twice[:3]}); wrong from place {wrong} on: {found[wrong : wrong + 3]}"
