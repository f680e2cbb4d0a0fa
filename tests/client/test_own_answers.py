"""What a writer's handle and a client answer by themselves, over stand-ins for their threads and bookies."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.inspection import bookie_orders, bookie_questions
from bookspark.client.network.bookie_connection import Answer
from bookspark.client.reading.read_handle import ReadHandle
from bookspark.client.runtime import client_context
from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.client.writing.telling_lac import told_lac
from bookspark.errors import AddTimeoutError, BookieError, BookKeeperError, LedgerFencedError
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Unknown, UnknownReason
from bookspark.threads import mark_own_thread
from bookspark.wire.columns import Heads
from bookspark.wire.header import Header, Kind
from bookspark.wire.messages import Limbo
from tests.client.unsent import unsent_context
from tests.metadata.kit import EVENT_SECONDS, ledger

YES, NO, UNKNOWN = (
    Answer(response)
    for response in (Positive(), Negative(NegativeReason.NO_SUCH_LEDGER), Unknown(UnknownReason.IO_ERROR))
)


@pytest.fixture
def handle():
    return LedgerHandle(unsent_context(), ledger(1), 0, b"")


def test_a_writer_tells_the_length_that_it_has_written_of_its_open_ledger(handle):
    handle._cursors.length = 12
    assert handle.length == 12


def test_a_writer_that_has_failed_asks_others_for_the_lac(handle, monkeypatch):
    """Another client may have recovered the ledger, and found more."""
    monkeypatch.setattr(ReadHandle, "read_last_add_confirmed", lambda self: 7)
    assert handle.read_last_add_confirmed() == -1
    monkeypatch.setattr(handle, "_pid", -1)
    assert handle.read_last_add_confirmed() == 7


def test_nobody_waits_for_an_entry_that_is_confirmed(handle, monkeypatch):
    monkeypatch.setattr(handle, "_follow", lambda: pytest.fail("it is looked for"))
    handle._await_confirmed(handle._cursors.last_add_confirmed, time.monotonic() + EVENT_SECONDS)


@pytest.mark.parametrize("error", [None, LedgerFencedError("the test")])
@pytest.mark.parametrize("call", ["append", "append_all"])
def test_a_sole_appender_appends_nothing_to_a_ledger_that_is_closed_or_has_failed(handle, call, error):
    appender, shared = handle.sole_appender(), handle._shared
    if error is None:
        shared.closing = True
    else:
        shared.acknowledged.fail(error)
    with pytest.raises(BookKeeperError):
        appender.append(b"0") if call == "append" else appender.append_all([b"0"], Heads((), 0))
    assert (shared.next_entry_id, bool(shared.outgoing)) == (0, False)


def lac_told(*answers, error=None, seconds=0.0):
    """``told_lac`` of a LAC of 4, with three bookies of which two have to take it. None: the ledger is closed, or has failed."""
    driver = SimpleNamespace(
        ledger_id=1,
        cursors=SimpleNamespace(last_add_confirmed=4),
        writer=SimpleNamespace(metadata=SimpleNamespace(ensemble_size=3, ack_quorum=2)),
        shared=SimpleNamespace(acknowledged=SimpleNamespace(error=error)),
        tell_lac=None,
    )

    def submit(tell, answered, ended):
        for answer in answers:
            ended() if answer is None else answered("b", answer)

    return told_lac(SimpleNamespace(submit=submit), driver, seconds)


def test_a_lac_is_told_once_an_ack_quorum_took_it():
    assert lac_told(NO, YES, YES) == lac_told(YES, YES) == lac_told(None) == 4


@pytest.mark.parametrize("answers", [(), (YES,), (YES, NO, UNKNOWN)])
def test_a_lac_that_too_few_took_in_time_is_an_error(answers):
    with pytest.raises(AddTimeoutError, match=f"only {answers.count(YES)} bookies"):
        lac_told(*answers)


def test_a_lac_of_a_ledger_that_failed_is_its_error():
    with pytest.raises(LedgerFencedError):
        lac_told(None, error=LedgerFencedError("the test"))


@pytest.mark.parametrize("answer", [NO, UNKNOWN, YES, Answer(Unknown(UnknownReason.BAD_REQUEST))])
def test_an_order_that_a_bookie_did_not_follow_is_an_error(monkeypatch, answer):
    """``YES``: without a header nobody answered."""
    monkeypatch.setattr(bookie_orders, "ask", lambda *question: answer)
    with pytest.raises(BookieError) as raised:
        bookie_orders._done(None, "b1", Header(Kind.COLLECT, 1))
    assert ("older version" in str(raised.value)) == (answer not in (NO, UNKNOWN, YES))


def test_a_bookies_limbo_is_asked_for_page_after_page_from_its_first_ledger_on(monkeypatch):
    pages = {0: ([(0, 1), (5, 2)], 6), 6: ([(6, 3)], -1)}

    def told(context, bookie_id, header):
        ledgers, following = pages[header.ledger_id]
        return Answer(Positive(), body=memoryview(Limbo(ledgers).encode())), header._replace(value=following)

    monkeypatch.setattr(bookie_questions, "_positive", told)
    monkeypatch.setattr(bookie_questions, "_next_request_id", lambda context: 1)
    assert bookie_questions.limbo(None, "b1") == {0: 1, 5: 2, 6: 3}


def test_a_client_is_not_opened_by_a_thread_of_its_own():
    """It would wait for itself."""
    context, raised = ClientContext(lambda: pytest.fail("it connects"), ClientConfig()), queue.SimpleQueue()

    def opens():
        mark_own_thread("of the test")
        try:
            context.runtime  # noqa: B018
        except BaseException as error:
            raised.put(error)

    thread = threading.Thread(target=opens)
    thread.start()
    thread.join()
    with pytest.raises(BookKeeperError, match="of the test"):
        raise raised.get(timeout=EVENT_SECONDS)


def test_what_a_client_had_in_a_parent_process_is_not_collected_in_this_one(monkeypatch):
    """Its finalizers would close what the parent uses."""

    class Made:
        pid = -1

    kept = []
    monkeypatch.setattr(client_context, "_of_parents", kept)
    monkeypatch.setattr(client_context, "Runtime", lambda *given: SimpleNamespace(pid=None))
    context = ClientContext(None, ClientConfig())
    context._made()
    assert not kept
    context._runtime = Made()
    parents = weakref.ref(context._runtime)
    context._made()
    gc.collect()
    assert parents() is not None
    context._runtime = None
