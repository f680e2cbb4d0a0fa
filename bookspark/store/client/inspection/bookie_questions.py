"""Questions to one bookie: its status, its entry logs, its limbo, its index.

Law: a bookie that does not answer in time raises ReadError; silence is never an empty answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from bookspark.errors import ReadError
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.metadata.records.names import check_ledger_id
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import NO_KEY, Header, Kind, WireError
from bookspark.store.wire.messages import BookieStatus, EntryLogFacts, EntryLogs, Limbo, Ranges, decoded
from bookspark.support.extras import extra_needed
from bookspark.support.threads import Latch, check_may_wait

if TYPE_CHECKING:
    import pyarrow

Body = TypeVar("Body")
RANGE_COLUMNS = ("ledger_id", "first_entry_id", "last_entry_id", "log", "position", "bytes")
"""Columns of a bookie's index, int64 each."""
_RANGES_PER_REQUEST = 100_000
_ROWS_PER_BATCH = 1 << 16
_LARGE_BATCH_BYTES = 16 << 10
_SPARE_SECONDS = 1.0
"""Margin of the wait: a request ends within its own time limit, so a longer wait only guards against a defect."""


def ask(context: ClientContext, bookie_id: str, kind: Kind, **fields: int) -> Answer:
    """Send one request to one bookie and wait for the answer; Unknown if none came in time. ``fields``: of the header. Raises
    BookKeeperError in a thread of the client's own."""
    check_may_wait()
    mailbox: list[Answer] = []
    done = Latch()

    def answered(answer: Answer) -> None:
        mailbox.append(answer)
        done.set()

    runtime, timeout = context.runtime, context.config.answer_timeout_seconds
    header = Header(kind, runtime.connections.next_request_id(), master_key=NO_KEY, **fields)
    runtime.io.submit(runtime.connections.send, bookie_id, header.request_id, control_frame(header), answered, timeout)
    done.wait(timeout + context.config.connect_timeout_seconds + _SPARE_SECONDS)
    return mailbox[0] if mailbox else Answer(Unknown(UnknownReason.UNREACHABLE, "no answer in time"))


def bookie_status(context: ClientContext, bookie_id: str) -> BookieStatus:
    """The bookie's status. Raises ReadError."""
    answer, _ = _positive(context, bookie_id, Kind.STATUS)
    return _body(bookie_id, answer, BookieStatus)


def entry_logs(context: ClientContext, bookie_id: str) -> list[EntryLogFacts]:
    """The bookie's entry logs, by number. Raises ReadError."""
    return [log for part in _parts(context, bookie_id, Kind.ENTRY_LOGS, "value", EntryLogs) for log in part.logs]


def limbo(context: ClientContext, bookie_id: str) -> dict[int, int]:
    """The ledgers in the bookie's limbo: ledger id → number of the lossy boot. Raises ReadError."""
    parts = _parts(context, bookie_id, Kind.LIMBO, "ledger_id", Limbo)
    return dict(pair for part in parts for pair in part.ledgers)


def _parts(context: ClientContext, bookie_id: str, kind: Kind, field: str, body: type[Body]) -> Iterator[Body]:
    """The answers that make a whole list. ``field``: the header's field with the number to go on at."""
    cursor = 0
    while cursor >= 0:
        answer, header = _positive(context, bookie_id, kind, **{field: cursor})
        yield _body(bookie_id, answer, body)
        cursor = _following(bookie_id, cursor, header.value)


def ranges(context: ClientContext, bookie_id: str, ledger_id: int | None) -> pyarrow.Table:
    """The rows of the bookie's index, of one ledger or (None) of all. Raises ReadError, and ConfigurationError for an invalid
    ledger id."""
    with extra_needed("list_ranges"):
        import pyarrow

    first, last = (0, None) if ledger_id is None else (check_ledger_id(ledger_id), ledger_id)
    batches = range_batches(context, bookie_id, first, last)
    return pyarrow.Table.from_batches(batches, pyarrow.schema([(name, pyarrow.int64()) for name in RANGE_COLUMNS]))


def range_batches(
    context: ClientContext, bookie_id: str, first: int = 0, last: int | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of the bookie's index for the ledgers ``first`` to ``last`` (None: no end), by ledger and entry id, in batches of
    at least _ROWS_PER_BATCH rows. Holds one batch in memory. Raises ReadError."""
    import pyarrow

    gathered = Ranges.empty()
    cursor, first_entry_id = first, 0
    while cursor >= 0 and (last is None or cursor <= last):
        found, cursor, first_entry_id = _some_ranges(context, bookie_id, cursor, first_entry_id, only=first == last)
        count = len(found.ledger_ids) if last is None else bisect_right(found.ledger_ids, last)
        for column, more in zip(gathered, found, strict=True):
            column.extend(more[:count])
        ended = cursor < 0 or (last is not None and cursor > last)
        if gathered.ledger_ids and (ended or len(gathered.ledger_ids) >= _ROWS_PER_BATCH):
            arrays = [pyarrow.array(column, pyarrow.int64()) for column in gathered]
            yield pyarrow.RecordBatch.from_arrays(arrays, list(RANGE_COLUMNS))
            gathered = Ranges.empty()


def large_batch_ends(context: ClientContext, bookie_id: str, ledger_id: int) -> list[int]:
    """Last entry ids of the bookie's batches of a ledger, ascending, up to the first part of the index whose batches have less
    than 16 KiB on average: so at most about one id for each 16 KiB of the ledger. Raises ReadError."""
    ends: list[int] = []
    for found in _ranges_of(context, bookie_id, ledger_id):
        if sum(found.sizes) < _LARGE_BATCH_BYTES * len(found.sizes):
            break
        ends += found.last_entry_ids
    return ends


def held_of(context: ClientContext, bookie_id: str, ledger_id: int) -> list[tuple[int, int]]:
    """The ranges (first, last) of a ledger's entries in the bookie's index, ascending. Raises ReadError."""
    held: list[tuple[int, int]] = []
    for found in _ranges_of(context, bookie_id, ledger_id):
        for first, last in zip(found.first_entry_ids, found.last_entry_ids, strict=True):
            if held and first == held[-1][1] + 1:
                held[-1] = held[-1][0], last
            else:
                held.append((first, last))
    return held


def has_writer(context: ClientContext, bookie_id: str, ledger_id: int) -> bool:
    """Has the bookie an open connection of the ledger's writer? False without an answer."""
    answer = ask(context, bookie_id, Kind.READ_LAC, ledger_id=ledger_id)
    return isinstance(answer.response, Positive) and answer.header is not None and answer.header.limit > 0


def _ranges_of(context: ClientContext, bookie_id: str, ledger_id: int) -> Iterator[Ranges]:
    cursor, first_entry_id = ledger_id, 0
    while cursor >= 0:
        found, cursor, first_entry_id = _some_ranges(context, bookie_id, cursor, first_entry_id, only=True)
        yield found


def _some_ranges(
    context: ClientContext, bookie_id: str, ledger_id: int, first_entry_id: int, *, only: bool
) -> tuple[Ranges, int, int]:
    """Some rows of the bookie's index from this ledger and entry on, and the next ledger (−1 at the end) and entry. ``only``:
    rows of this ledger only."""
    answer, told = _positive(
        context,
        bookie_id,
        Kind.RANGES,
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        limit=_RANGES_PER_REQUEST,
        value=int(only),
    )
    if told.value == ledger_id and told.first_entry_id <= first_entry_id:
        raise ReadError(f"bookie {bookie_id} would repeat its ranges of ledger {ledger_id} for ever")
    _following(bookie_id, ledger_id - 1, told.value)
    try:
        return Ranges.decode(answer.body), told.value, told.first_entry_id
    except WireError as error:
        raise ReadError(f"bookie {bookie_id} did not answer with ranges: {error}") from error


def _positive(context: ClientContext, bookie_id: str, kind: Kind, **fields: int) -> tuple[Answer, Header]:
    """The bookie's positive answer, and its header. Raises ReadError for any other answer."""
    answer = ask(context, bookie_id, kind, **fields)
    if not isinstance(answer.response, Positive) or answer.header is None:
        raise ReadError(f"bookie {bookie_id} did not answer: {answer.response}")
    return answer, answer.header


def _body(bookie_id: str, answer: Answer, kind: type[Body]) -> Body:
    try:
        return decoded(answer.body, kind)
    except WireError as error:
        raise ReadError(f"bookie {bookie_id} did not answer with what was asked: {error}") from error


def _following(bookie_id: str, cursor: int, told: int) -> int:
    """The answer's next cursor: behind ``cursor``, or −1 at the end."""
    if 0 <= told <= cursor:
        raise ReadError(
            f"bookie {bookie_id} would repeat its answer for ever: it goes on at {told}, asked from {cursor}"
        )
    return told
