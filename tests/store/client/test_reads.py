"""Reads through a handle: judging bookies' answers, choosing the next replica, and ledger recovery.

A client chooses its first replica at random. So a test of bad answers makes each replica the good one in turn.
"""

from __future__ import annotations

import pytest

from bookspark.errors import (
    ConfigurationError,
    InvalidArgumentError,
    LedgerRecoveryError,
    NoSuchEntryError,
    ReadError,
    TooManyRequestsError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.store.wire.header import Flag, Kind, Status
from tests.awaiting import await_that
from tests.store.client.fake_bookie import SECONDS, FakeBookie, batch, garbage, hang_up, silence, told

PAYLOADS = [b"zero", b"one", b"two", b"three"]
BEST = ("b1", "b2", "b3")


def written(cluster, *, close=True, **choices):
    """Write a ledger to all three bookies; returns its id."""
    bookies = cluster.start(*BEST)
    ledger = cluster.client().create_ledger(3, 3, **{"ack_quorum": 2} | choices)
    cluster.writers.append(ledger)
    ledger.append_batch(PAYLOADS)
    await_that(lambda: all(len(bookie.entries[ledger.ledger_id]) == len(PAYLOADS) for bookie in bookies))
    if close:
        ledger.close()
    return ledger.ledger_id


def payloads(reader, *bounds):
    return [entry.payload for entry in reader.read(*bounds)]


def script(cluster, kind, answer, but=()):
    """Make all bookies ``but`` some answer with ``answer``."""
    for bookie_id in BEST:
        if bookie_id in but:
            cluster.bookies[bookie_id].answers.pop(kind, None)
        else:
            cluster.bookies[bookie_id].answers[kind] = answer


def read_answer(entries, **fields):
    """The answer to a read with these entries of the bookie, changed by ``fields``."""

    def answer(bookie, header, body):
        rows = [bookie.entries[header.ledger_id][i]._replace(**fields) for i in entries]
        first = header.first_entry_id
        return batch(header, rows) + told(header, first_entry_id=first, last_entry_id=first, value=len(rows))

    return answer


def of_another_ledger(bookie, header, body):
    rows = [bookie.entries[header.ledger_id][header.first_entry_id]._replace(ledger_id=header.ledger_id + 1)]
    sent = batch(header, rows, ledger_id=header.ledger_id + 1)
    return sent + told(header, last_entry_id=header.first_entry_id, value=1)


def ok_and_nothing(bookie, header, body):
    return told(header, last_entry_id=header.first_entry_id - 1)


BAD_ANSWERS = {
    "absent": (Status.NO_SUCH_ENTRY, "no such entry"),
    "no such ledger": (Status.NO_SUCH_LEDGER, "no such ledger"),
    "I/O error": (Status.IO_ERROR, "I/O error"),
    "lost": (Status.LOST, "lost its copy"),
    "limbo": (Status.LIMBO, "limbo"),
    "damaged": (read_answer([0], payload=b"zerO"), "digest mismatch: entry 0"),
    "entry not asked for": (read_answer([0, 1]), "with entry 1 to a read of entries up to 0"),
    "gap": (read_answer([1]), "does not go on where it stopped"),
    "another ledger": (of_another_ledger, "with something else"),
    "nothing": (ok_and_nothing, "an answer without entries"),
    "garbage": (garbage, "sent what is no answer"),
    "hang up": (hang_up, "closed by the bookie"),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_read_tries_the_next_replica_after_an_unusable_answer(cluster, bad):
    ledger_id = written(cluster)
    for good in BEST:
        script(cluster, Kind.READ, BAD_ANSWERS[bad][0], but=good)
        reader = cluster.client().open_ledger(ledger_id)
        assert payloads(reader, 0, 0) == [b"zero"]


@pytest.mark.parametrize("bad", [bad for bad in BAD_ANSWERS if bad not in ("absent", "no such ledger")])
def test_failed_read_names_each_replica_and_does_not_deny_the_entry(cluster, bad):
    """An entry is absent only if every replica explicitly denies it."""
    ledger_id = written(cluster)
    answer, words = BAD_ANSWERS[bad]
    script(cluster, Kind.READ, answer)
    cluster.bookies["b1"].answers[Kind.READ] = Status.NO_SUCH_ENTRY
    with pytest.raises(ReadError) as raised:
        payloads(cluster.client().open_ledger(ledger_id), 0, 0)
    assert not isinstance(raised.value, NoSuchEntryError)
    assert "b1: no such entry" in str(raised.value)
    assert str(raised.value).count(words) == 2, raised.value


def test_entry_denied_by_all_replicas_is_absent(cluster):
    ledger_id = written(cluster)
    script(cluster, Kind.READ, Status.NO_SUCH_ENTRY)
    with pytest.raises(NoSuchEntryError):
        payloads(cluster.client().open_ledger(ledger_id), 1, 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(Status.UNAUTHORIZED, UnauthorizedAccessError), (Status.TOO_MANY_REQUESTS, TooManyRequestsError)],
)
def test_read_refused_by_all_replicas_raises_the_reason(cluster, answer, error):
    ledger_id = written(cluster)
    script(cluster, Kind.READ, answer)
    with pytest.raises(error):
        payloads(cluster.client().open_ledger(ledger_id))


def test_silent_replica_causes_a_speculative_read_or_a_timeout(cluster):
    ledger_id = written(cluster)
    for good in BEST:
        script(cluster, Kind.READ, silence, but=good)
        assert payloads(cluster.client(speculative_read_delay_ms=20).open_ledger(ledger_id)) == PAYLOADS
        script(cluster, Kind.READ, silence)
        with pytest.raises(ReadError, match="no answer in time"):
            payloads(cluster.client(answer_timeout_seconds=0.1).open_ledger(ledger_id))


def test_entries_before_a_damaged_entry_are_used_and_the_rest_read_elsewhere(cluster):
    ledger_id = written(cluster)

    def damaged_from_two_on(bookie, header, body):
        rows = [bookie.entries[header.ledger_id][i] for i in range(header.first_entry_id, 4)]
        rows = [row._replace(payload=b"bad") if row.entry_id >= 2 else row for row in rows]
        return batch(header, rows) + told(header, last_entry_id=3, value=len(rows))

    for good in BEST:
        script(cluster, Kind.READ, damaged_from_two_on, but=good)
        assert payloads(cluster.client().open_ledger(ledger_id)) == PAYLOADS


def test_read_continues_after_the_last_entry_of_each_answer(cluster):
    ledger_id = written(cluster)
    for bookie in cluster.bookies.values():
        bookie.entries_per_answer = 1
    assert payloads(cluster.client().open_ledger(ledger_id)) == PAYLOADS
    asked = [header.first_entry_id for bookie in cluster.bookies.values() for header in bookie.came(Kind.READ)]
    assert sorted(asked) == [0, 1, 2, 3]


def test_read_updates_the_handles_lac(cluster):
    """LAC: last-add-confirmed."""
    ledger_id = written(cluster, close=False)
    for bookie in cluster.bookies.values():
        bookie.confirmed[ledger_id] = 2
    reader = cluster.client().open_ledger_no_recovery(ledger_id, confirmed=0)
    with pytest.raises(ReadError, match="entry 1 is beyond the last confirmed one, 0"):
        reader.read(0, 1)
    assert payloads(reader) == [b"zero"]
    assert reader.last_add_confirmed == 2
    assert payloads(reader, 1) == [b"one", b"two"]


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (2, 0), (0, 4), (5, None)])
def test_invalid_or_unconfirmed_range_is_refused_without_a_request(cluster, first, last):
    ledger_id = written(cluster)
    reader = cluster.client().open_ledger(ledger_id)
    with pytest.raises((ReadError, ConfigurationError)):
        reader.read(first, last)
    assert not any(bookie.came(Kind.READ) for bookie in cluster.bookies.values())


# -- last-add-confirmed (LAC)


def test_lac_is_the_highest_of_enough_answers(cluster):
    ledger_id = written(cluster, close=False)
    # Two answers are enough, and any two bookies include one that has this LAC.
    cluster.bookies["b2"].confirmed[ledger_id] = cluster.bookies["b3"].confirmed[ledger_id] = 3
    reader = cluster.client().open_ledger_no_recovery(ledger_id)
    assert reader.last_add_confirmed == 3
    assert not any(bookie.fenced for bookie in cluster.bookies.values())
    cluster.bookies["b2"].confirmed[ledger_id] = cluster.bookies["b3"].confirmed[ledger_id] = 1
    assert reader.read_last_add_confirmed() == 3
    script(cluster, Kind.READ_LAC, Status.IO_ERROR)
    with pytest.raises(ReadError, match="b1: I/O error"):
        reader.read_last_add_confirmed()


def test_long_poll_waits_at_the_bookies_and_returns_entry_and_lac(cluster):
    ledger_id = written(cluster, close=False)
    reader = cluster.client().open_ledger_no_recovery(ledger_id, confirmed=-1)
    poll = reader.read_last_add_confirmed_and_entry_async(3, SECONDS)
    for bookie in cluster.bookies.values():
        header = bookie.await_requests(Kind.READ_LAC)[-1]
        assert header.limit > 0
        assert header.first_entry_id == 3
        assert header.flags & Flag.ENTRY
    bookie = cluster.bookies["b3"]
    bookie.confirmed[ledger_id] = 3
    # With its next answer the bookie also answers polls that are due.
    cluster.client().bookie_status("b3")
    confirmed, entry = poll.result(SECONDS)
    assert (confirmed, entry.payload) == (3, b"three")
    assert not any(each.came(Kind.READ) for each in cluster.bookies.values())


def test_long_poll_is_sent_again_to_a_bookie_with_too_many_polls(cluster):
    ledger_id = written(cluster, close=False)
    reader = cluster.client().open_ledger_no_recovery(ledger_id, confirmed=-1)
    script(cluster, Kind.READ_LAC, silence)
    busy = cluster.bookies["b2"]
    busy.answers[Kind.READ_LAC] = Status.TOO_MANY_REQUESTS
    poll = reader.read_last_add_confirmed_and_entry_async(0, SECONDS)
    busy.await_requests(Kind.READ_LAC, 2)
    busy.confirmed[ledger_id] = 0
    del busy.answers[Kind.READ_LAC]
    confirmed, entry = poll.result(SECONDS)
    assert (confirmed, entry.payload) == (0, b"zero")


# -- ledger recovery


def test_recovery_fences_with_each_read_and_writes_back_all_entries(cluster):
    ledger_id = written(cluster, close=False)
    kept = cluster.bookies["b1"].entries[ledger_id]
    for entry_id in (2, 3):
        del cluster.bookies["b2"].entries[ledger_id][entry_id]
    reader = cluster.client().open_ledger(ledger_id)
    assert (reader.metadata.state, reader.last_add_confirmed) == (LedgerState.CLOSED, 3)
    for bookie in cluster.bookies.values():
        # The recovery waits for two of three bookies.
        await_that(lambda bookie=bookie: bookie.came(Kind.ADD)[-1].flags & Flag.RECOVERY)
        await_that(lambda bookie=bookie: bookie.entries[ledger_id] == kept)
        assert bookie.fenced == {ledger_id}
        assert all(header.flags & Flag.FENCE for header in bookie.came(Kind.READ_LAC) + bookie.came(Kind.READ))


def test_recovery_closes_before_an_entry_only_if_enough_bookies_deny_it(cluster):
    ledger_id = written(cluster, close=False)

    def knows_nothing_of_two(bookie, header, body):
        if header.first_entry_id < 2:
            bookie.entries_per_answer = 2 - header.first_entry_id
            return FakeBookie.as_a_bookie(bookie, header, body)
        return told(header, status=Status.LIMBO)

    for bookie in cluster.bookies.values():
        bookie.answers[Kind.READ] = knows_nothing_of_two
    with pytest.raises(LedgerRecoveryError, match="entry 2 may or may not exist"):
        cluster.client().open_ledger(ledger_id)
    assert cluster.store.read_ledger(ledger_id).value.state is LedgerState.IN_RECOVERY
    for bookie in cluster.bookies.values():
        bookie.answers.clear()
        bookie.entries_per_answer = 1000
        del bookie.entries[ledger_id][3]
    assert cluster.client().open_ledger(ledger_id).last_add_confirmed == 2


@pytest.mark.parametrize("answer", [Status.IO_ERROR, silence, hang_up, garbage])
def test_recovery_without_enough_fenced_bookies_times_out_and_can_be_retried(cluster, answer):
    ledger_id = written(cluster, close=False)
    script(cluster, Kind.READ_LAC, answer)
    with pytest.raises(LedgerRecoveryError):
        cluster.client(recovery_timeout_seconds=0.3).open_ledger(ledger_id)
    script(cluster, Kind.READ_LAC, None, but=BEST)
    assert payloads(cluster.client().open_ledger(ledger_id)) == PAYLOADS


def test_recovery_replaces_a_bookie_that_refuses_entries_written_back(cluster):
    ledger_id = written(cluster, close=False, ack_quorum=3)
    cluster.bookies["b1"].answers[Kind.ADD] = Status.IO_ERROR
    (spare,) = cluster.start("b4")
    reader = cluster.client().open_ledger(ledger_id)
    assert set(reader.metadata.bookies()) >= {"b2", "b3", "b4"}
    assert sorted(spare.entries[ledger_id]) == [0, 1, 2, 3]


def test_wrong_password_is_refused_without_a_request(cluster):
    ledger_id = written(cluster, close=False, password=b"right")
    client = cluster.client()
    for call in (client.open_ledger, client.open_ledger_no_recovery):
        with pytest.raises(UnauthorizedAccessError, match="nothing was fenced"):
            call(ledger_id, b"wrong")
    assert not any(bookie.came(Kind.READ_LAC) for bookie in cluster.bookies.values())
    assert cluster.store.read_ledger(ledger_id).value.state is LedgerState.OPEN


def test_recovery_ends_if_bookies_have_another_password(cluster):
    ledger_id = written(cluster, close=False)
    script(cluster, Kind.READ_LAC, Status.UNAUTHORIZED)
    with pytest.raises(UnauthorizedAccessError):
        cluster.client().open_ledger(ledger_id)


def test_loss_is_accepted_only_with_a_name_and_for_the_ledgers_bookies(cluster, caplog):
    ledger_id = written(cluster, close=False)
    client = cluster.client(answer_timeout_seconds=5.0, connect_timeout_seconds=5.0)
    with pytest.raises(InvalidArgumentError, match="can't be used alone"):
        client.open_ledger(ledger_id, lost_bookies=["b1"])
    with pytest.raises(ConfigurationError, match="b9"):
        client.open_ledger(ledger_id, accept_loss_as="Ada", lost_bookies=["b9"])
    assert not any(bookie.came(Kind.READ_LAC) for bookie in cluster.bookies.values())
    script(cluster, Kind.READ_LAC, Status.LOST)
    script(cluster, Kind.READ, Status.LOST)
    with pytest.raises(LedgerRecoveryError):
        client.open_ledger(ledger_id)
    reader = client.open_ledger(ledger_id, accept_loss_as="Ada")
    assert reader.metadata.accepted_loss.by == "Ada"
    assert "with a loss that Ada accepted" in caplog.text


def test_tailing_reader_sees_the_ledger_close(cluster):
    ledger_id = written(cluster, close=False)
    reader = cluster.client().open_ledger_no_recovery(ledger_id, confirmed=-1)
    poll = reader.read_last_add_confirmed_and_entry_async(7, SECONDS)
    cluster.bookies["b1"].await_requests(Kind.READ_LAC)
    cluster.client().open_ledger(ledger_id)
    assert poll.result(SECONDS) == (3, None)
    await_that(lambda: reader.metadata.closed)
    assert payloads(reader) == PAYLOADS
