"""How a ledger is opened, and how a range of it is read, over stand-ins: what is asked, and what the errors say."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.network.mailbox import Mailbox
from bookspark.client.reading import ledger_opening, range_reading
from bookspark.client.reading.range_reading import Delivered, read_range
from bookspark.client.reading.read_handle import ReadHandle
from bookspark.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    ReadError,
    UnauthorizedAccessError,
)
from bookspark.metadata.records.versioned import Versioned
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.wire.digests import master_key
from tests.client.by_hand.reading.test_reading import CLOSED, FAILURE, LAC, OPEN, Box, Machine
from tests.metadata.kit import ledger


class Reads:
    def __init__(self):
        self.asked = []

    def read(self, action, put):
        self.asked.append((action, put))


def read_answer(value=None, response=None):
    following = response or Positive(None if value is None else SimpleNamespace(last_add_confirmed=value))
    return act.ReadAnswered("b1", 0, 4, following)


def ranged(monkeypatch, machine, box, metadata=None, **config):
    requests = Reads()
    monkeypatch.setattr(range_reading, "Mailbox", box)
    options = {"answer_timeout_seconds": 7.0, "connect_timeout_seconds": 2.0} | config
    return requests, read_range(machine, requests, lambda: metadata, ClientConfig(**options))


def test_a_read_sends_before_it_delivers_and_tells_the_highest_lac_that_came(monkeypatch):
    send, deliver = act.SendRead("b1", 0, 9), act.Deliver(0, 4, ["entries"])
    answers = [read_answer(6), read_answer(4), read_answer(), read_answer(9, Unknown(UnknownReason.IO_ERROR))]
    machine = Machine([send], [deliver, send], [deliver], [deliver], [deliver, act.Finish()])
    box = Box(*answers)
    requests, delivered = ranged(monkeypatch, machine, box)
    assert next(delivered) == Delivered(["entries"], 6) and len(requests.asked) == 2
    assert [one.last_add_confirmed for one in delivered] == [6, 6, 6]
    assert requests.asked == [(send, box.put)] * 2 and machine.events == answers
    assert box.notes == [("made", 14.0), *[("allow", 0.5), "take"] * 4]


def test_a_record_that_a_read_wants_is_read_and_an_error_raised(monkeypatch):
    read = act.MetadataRead(OPEN, 3)
    machine = Machine([act.ReadMetadata()], [act.Fail(ReadError("nobody"))])
    _, delivered = ranged(monkeypatch, machine, Box(), read)
    with pytest.raises(ReadError, match="nobody"):
        next(delivered)
    assert machine.events == [read]


@pytest.mark.parametrize("delay_ms", [500, 0])
@pytest.mark.parametrize("another", [True, False])
def test_a_late_read_has_another_replica_asked_or_is_waited_for_to_its_end(monkeypatch, delay_ms, another):
    late, answer = act.DeadlinePassed(), read_answer()
    actions = [[], [act.SendRead("b2", 7, 9)] if another else [], [act.Finish()]] if delay_ms else [[], [act.Finish()]]
    machine, box = Machine(*actions), Box(late, answer)
    requests, delivered = ranged(monkeypatch, machine, box, speculative_read_delay_ms=delay_ms)
    assert list(delivered) == []
    assert machine.events == [act.ReadIsLate(7)] * bool(delay_ms) + [answer]
    delay = 0.5 if delay_ms else 14.0
    asked = bool(delay_ms and another)
    assert box.notes[1:] == [("allow", delay), "take", ("allow", delay if asked else 14.0), "take"]
    assert len(requests.asked) == asked


def test_a_read_that_nobody_answers_at_all_ends(monkeypatch):
    late = act.DeadlinePassed()
    _, delivered = ranged(monkeypatch, Machine([], []), Box(late, late))
    with pytest.raises(ReadError, match="entry 7: no replica answered within 14 s"):
        list(delivered)


# -- opening


def context_of(metadata, **fields):
    return SimpleNamespace(
        store=SimpleNamespace(read_ledger=lambda ledger_id: Versioned(metadata, 3)), config=ClientConfig(), **fields
    )


def test_a_wrong_password_and_a_loss_without_a_name_are_refused_before_anything_is_sent(monkeypatch):
    monkeypatch.setattr(ledger_opening, "_recover", lambda *what: pytest.fail("it is recovered"))
    context = context_of(ledger(1, master_key=master_key(b"right")))
    with pytest.raises(UnauthorizedAccessError):
        ledger_opening.open_with_recovery(context, 1, b"wrong", None, ())
    with pytest.raises(InvalidArgumentError, match="accept_loss_as too"):
        ledger_opening.open_with_recovery(context, 1, b"right", None, ("bookie-1",))
    with pytest.raises(BookKeeperError, match="no-bookie"):
        ledger_opening.open_with_recovery(context, 1, b"right", "me", ("no-bookie",))


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("by", [None, "me"])
def test_only_an_open_ledger_is_recovered_with_the_loss_that_is_accepted(monkeypatch, closed, by):
    key = master_key(b"right")
    metadata = ledger(1, master_key=key)
    found = metadata.in_recovery().close_at(9, 90) if closed else metadata
    asked = []

    def recover(context, found, password, accepted):
        asked.append((found, password, accepted))
        return Versioned(metadata.in_recovery().close_at(7, 70), 5)

    monkeypatch.setattr(ledger_opening, "_recover", recover)
    lost = ("bookie-2", "bookie-1", "bookie-2") if by else ()
    handle = ledger_opening.open_with_recovery(context_of(found), 1, b"right", by, lost)
    assert handle.last_add_confirmed == (9 if closed else 7)
    if closed:
        assert asked == []
    else:
        ((given, password, accepted),) = asked
        assert (given, password) == (Versioned(metadata, 3), b"right")
        assert (accepted is None) is (by is None)
        if accepted:
            assert accepted == AcceptedLoss("me", accepted.at_ms, ("bookie-1", "bookie-2"))


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (NoSuchLedgerError("gone"), NoSuchLedgerError),
        (LedgerRecoveryError("later"), LedgerRecoveryError),
        (UnauthorizedAccessError("wrong"), UnauthorizedAccessError),
        (NotEnoughBookiesError("2"), LedgerRecoveryError),
        (FAILURE, LedgerRecoveryError),
    ],
)
def test_what_ends_a_recovery_says_whether_it_can_be_tried_again(monkeypatch, raised, told):
    class Driver:
        def __init__(self, *given):
            assert given[1:] == (OPEN, b"pw", ClientConfig().recovery_timeout_seconds)

        def run(self, step, actions):
            raise raised

    monkeypatch.setattr(ledger_opening, "MachineDriver", Driver)
    with pytest.raises(told) as caught:
        ledger_opening._recover(context_of(OPEN), Versioned(OPEN, 3), b"pw", None)
    assert (caught.value is raised) is (type(raised) is told)


@pytest.mark.parametrize("lost", [True, False])
def test_a_recovery_replaces_bookies_and_tells_what_was_lost(monkeypatch, lost, caplog):
    accepted = AcceptedLoss("me", 7, ("b1",)) if lost else None
    closed, machine = replace(CLOSED, accepted_loss=accepted), Machine()
    machine.step = lambda event: [event]
    monkeypatch.setattr(ledger_opening, "made", machine)

    class Driver:
        def __init__(self, *given):
            pass

        def run(self, step, actions):
            assert (step, actions) == (machine.step, [act.MetadataRead(OPEN, 3)])
            return act.Finish(closed, 5)

    monkeypatch.setattr(ledger_opening, "MachineDriver", Driver)
    found = ledger_opening._recover(context_of(OPEN), Versioned(OPEN, 3), b"pw", accepted)
    assert found == Versioned(closed, 5)
    assert machine.given == ((), {"replaces_bookies": True, "accepted_loss": accepted})
    assert ("closed at entry 9 with a loss that me accepted" in caplog.text) is lost


def test_where_the_lac_is_not_known_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(ReadHandle, "read_last_add_confirmed", lambda self: self.confirm(4))
    context = context_of(ledger(1, master_key=master_key(b"")))
    for confirmed, known in ((None, 4), (7, 7), (0, 0)):
        handle = ledger_opening.open_without_recovery(context, 1, b"", confirmed)
        assert handle.last_add_confirmed == known


# -- mailboxes


def test_a_mailbox_is_one_processs_and_its_time_is_never_negative():
    before = time.monotonic()
    mailbox = Mailbox(60.0)
    assert 59.0 < mailbox.left_seconds() <= 60.0 + before - time.monotonic() + 1.0
    mailbox.put(LAC)
    assert mailbox.take() == LAC
    mailbox.allow(-5.0)
    assert mailbox.left_seconds() == 0.0 and isinstance(mailbox.take(), act.DeadlinePassed)
    mailbox._pid = -1
    with pytest.raises(BookKeeperError, match="process -1 began this read"):
        mailbox.take()
