"""The writer's transition tables: every pair of a state and an event follows them, and unlisted events change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import LedgerClosedError, MetadataStoreError, NotEnoughBookiesError
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.values import freeze
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState, LedgerType, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.ledger.transitions import LATE, REFUSED, TAKEN, IllegalEventError, cell_of, row
from bookspark.protocol.writing import writer_events as ev
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import ANSWERS, TRANSITIONS, Asked, LedgerWriter, State
from tests.protocol.ledgers import LOST, OK, metadata
from tests.protocol.transitions_kit import TransitionsKit, event_types

GONE = MetadataStoreError("no answer in time")
NONE_LEFT = NotEnoughBookiesError("no bookie left")
KINDS = {
    "PD": {},
    "VD": {"ledger_type": LedgerType.VD_JOURNAL},
    "guaranteed": {"replication": Replication.GUARANTEED},
}


def report(last):
    return act.SyncReport(last, 1, Assignment(0))


def acked(writer, bookie, entry_id, synced=NotImplemented):
    """An ack; on a VD ledger it reports ``synced`` as synced, by default all up to the entry."""
    synced = entry_id if synced is NotImplemented else synced
    volatile = writer.metadata.ledger_type is LedgerType.VD_JOURNAL
    return act.AddAnswered(bookie, entry_id, entry_id, OK, report(synced) if volatile else None)


# -- a writer in each state


def opened(kind):
    """Entry 0 is fully replicated, entry 1 pending."""
    writer = LedgerWriter(metadata(**KINDS[kind]), 0, ChangeMode.AT_ONCE)
    writer.step(ev.Append(1, 10))
    for bookie in ("b1", "b2", "b3"):
        writer.step(acked(writer, bookie, 0))
    writer.step(ev.Append(1, 10))
    return writer


def idle(kind):
    """Both entries are fully replicated."""
    writer = opened(kind)
    for bookie in ("b1", "b2", "b3"):
        writer.step(acked(writer, bookie, 1))
    return writer


def choosing(kind, begin=opened):
    """Replacements for b3 are being chosen."""
    writer = begin(kind)
    writer.step(act.AddAnswered("b3", 1, 1, LOST))
    return writer


def changing(kind, begin=opened):
    writer = choosing(kind, begin)
    writer.step(act.BookiesChosen(("b4",)))
    return writer


def change_lost(kind, begin=opened):
    writer = changing(kind, begin)
    writer.step(act.MetadataConflict())
    return writer


def put_off(kind):
    """b3 stays, because there is no spare bookie."""
    writer = choosing(kind)
    writer.step(act.NoBookies(NONE_LEFT))
    return writer


def closing(kind):
    writer = opened(kind)
    writer.step(ev.Close())
    return writer


def closing_with_news(kind):
    """Entry 1 is confirmed, but no add has carried that LAC; entry 2 is pending."""
    writer = opened(kind)
    writer.step(ev.Append(1, 10))
    for bookie in ("b1", "b2", "b3"):
        writer.step(acked(writer, bookie, 1))
    writer.step(ev.Close())
    return writer


def writing(kind):
    writer = idle(kind)
    writer.step(ev.Close())
    return writer


def given_up(kind):
    """Without an ack quorum and without spares a best-effort writer closes the ledger."""
    writer = choosing(kind)
    writer.step(act.AddAnswered("b2", 1, 1, LOST))
    writer.step(act.NoBookies(NONE_LEFT))
    return writer


def close_lost(kind):
    writer = writing(kind)
    writer.step(act.MetadataConflict())
    return writer


def closed(kind):
    writer = writing(kind)
    writer.step(act.MetadataWritten(1))
    return writer


def failed(begin):
    def make(kind):
        writer = begin(kind)
        writer.step(act.DeadlinePassed())
        return writer

    return make


def while_closing(begin):
    return lambda kind: begin(kind, closing)


WAYS = {
    "open": opened,
    "idle": idle,
    "choosing": choosing,
    "changing": changing,
    "change_lost": change_lost,
    "put_off": put_off,
    "closing": closing,
    "closing_with_news": closing_with_news,
    "closing_choosing": while_closing(choosing),
    "closing_changing": while_closing(changing),
    "closing_change_lost": while_closing(change_lost),
    "writing": writing,
    "given_up": given_up,
    "close_lost": close_lost,
    "closed": closed,
    "failed": failed(opened),
    "failed_choosing": failed(choosing),
    "failed_changing": failed(changing),
    "failed_change_lost": failed(change_lost),
    "failed_writing": failed(writing),
    "failed_close_lost": failed(close_lost),
}
PLACES = {f"{kind}_{name}": lambda kind=kind, way=way: way(kind) for kind in KINDS for name, way in WAYS.items()}

SAMPLES = {
    ev.Append: lambda writer: ev.Append(1, 10),
    ev.Close: lambda writer: ev.Close(),
    ev.Abandon: lambda writer: ev.Abandon(GONE),
    ev.Sync: lambda writer: ev.Sync(),
    ev.TellLac: lambda writer: ev.TellLac(),
    ev.Idle: lambda writer: ev.Idle(1e9, 60.0),
    ev.ExplicitLacAnswered: lambda writer: ev.ExplicitLacAnswered("b1", Unknown(UnknownReason.TIMEOUT), 5.0),
    ev.BookieBack: lambda writer: ev.BookieBack("b1", 2),
    ev.BookiesChanged: lambda writer: ev.BookiesChanged(),
    ev.PassedOver: lambda writer: ev.PassedOver("b1"),
    ev.HeldUp: lambda writer: ev.HeldUp(("b1",)),
    ev.BookiesLost: lambda writer: ev.BookiesLost(("b1",)),
    act.AddAnswered: lambda writer: acked(writer, "b1", 1),
    act.SyncAnswered: lambda writer: act.SyncAnswered("b1", OK, report(1)),
    act.BookiesChosen: lambda writer: act.BookiesChosen(("b4", "b5")[: len(writer._changes.replaced)]),
    act.NoBookies: lambda writer: act.NoBookies(NONE_LEFT),
    act.DeadlinePassed: lambda writer: act.DeadlinePassed(),
    act.MetadataRead: lambda writer: act.MetadataRead(writer.metadata, 5),
    act.MetadataWritten: lambda writer: act.MetadataWritten(5),
    act.MetadataConflict: lambda writer: act.MetadataConflict(),
    act.RecordFull: lambda writer: act.RecordFull(NONE_LEFT),
    act.MetadataFailed: lambda writer: act.MetadataFailed(GONE),
}


def expected(writer, event):
    """The tables' cell for the event."""
    kind = type(event)
    if kind is act.SyncAnswered and writer.metadata.ledger_type is not LedgerType.VD_JOURNAL:
        return None
    if kind in TRANSITIONS[writer.state]:
        return TRANSITIONS[writer.state][kind]
    cell = ANSWERS[writer.asked].get(kind)
    return LATE if cell is TAKEN and writer.state is State.FAILED else cell


KIT = TransitionsKit(PLACES, SAMPLES, expected)


@pytest.mark.parametrize("event_type", KIT.events())
def test_every_pair_follows_the_tables(event_type):
    KIT.check(event_type)


def test_pairs_cover_all_events_states_and_questions():
    assert event_types(ev.WriterEvent) == SAMPLES.keys()
    assert TRANSITIONS.keys() == set(State) and ANSWERS.keys() == set(Asked)
    in_tables = {kind for table in (TRANSITIONS, ANSWERS) for cells in table.values() for kind in cells}
    assert in_tables == SAMPLES.keys()
    assert KIT.states_without_a_place(State, lambda writer: writer.state) == set()
    assert KIT.states_without_a_place(Asked, lambda writer: writer.asked) == set()


def test_every_taken_event_acts_in_some_place():
    answers = {kind for cells in ANSWERS.values() for kind in cells}
    by_state = KIT.idle_places(lambda writer: writer.state)
    assert {(state, kind) for state, kind in by_state if kind not in answers} == set()
    by_question = KIT.idle_places(lambda writer: writer.asked)
    assert {(asked, kind) for asked, kind in by_question if kind in answers} == set()


QUESTIONS = {
    State.OPEN: {Asked.NOTHING, Asked.BOOKIES, Asked.CHANGE_WRITE, Asked.CHANGE_READ},
    State.CLOSING: {Asked.NOTHING, Asked.BOOKIES, Asked.CHANGE_WRITE, Asked.CHANGE_READ},
    State.WRITING: {Asked.CLOSE_WRITE, Asked.CLOSE_READ},
    State.CLOSED: {Asked.NOTHING},
    State.FAILED: set(Asked),
}


def test_places_cover_every_question_of_every_state():
    found = {(writer.state, writer.asked) for writer in (make() for make in PLACES.values())}
    assert found == {(state, asked) for state, questions in QUESTIONS.items() for asked in questions}


@pytest.mark.parametrize(
    "options",
    [
        SimulationOptions(2, 2, 1, spares=1, entries=2, losses=1, recoverers=0, ensemble_changes=ChangeMode.AT_ONCE),
        SimulationOptions(2, 2, 2, entries=1, recoverers=1),
        SimulationOptions(1, 1, 1, crashes=1, ledger_type=LedgerType.VD_JOURNAL),
    ],
    ids=lambda options: options.arguments(),
)
def test_simulator_reaches_no_other_questions(options):
    search = Exhaustive(options)
    search.run()
    writers = [client.machine for client in search.world.clients.values if isinstance(client.machine, LedgerWriter)]
    assert writers
    assert all(writer.asked in QUESTIONS[writer.state] for writer in writers)


# -- impossible content


def illegal(writer, event):
    before = freeze(writer)
    with pytest.raises(IllegalEventError) as raised:
        writer.step(event)
    assert freeze(writer) == before
    return str(raised.value)


@pytest.mark.parametrize("ids", [(2, 2), (1, 2), (0, 1), (-1, -1), (0, 2)])
@pytest.mark.parametrize("response", [OK, LOST])
def test_answer_to_an_unsent_add_is_illegal(ids, response):
    assert "were not sent" in illegal(opened("PD"), act.AddAnswered("b1", *ids, response))


def test_answer_to_a_part_of_a_run_is_illegal():
    writer = LedgerWriter(metadata(), 0)
    writer.step(ev.Append(3, 30))
    illegal(writer, act.AddAnswered("b1", 0, 0, OK))
    illegal(writer, act.AddAnswered("b1", 1, 2, OK))


def test_sync_reports_belong_to_positive_answers_of_vd_ledgers_only():
    illegal(opened("PD"), act.AddAnswered("b1", 1, 1, OK, report(1)))
    illegal(opened("VD"), act.AddAnswered("b1", 1, 1, OK))
    illegal(opened("VD"), act.AddAnswered("b1", 1, 1, LOST, report(1)))
    illegal(opened("VD"), act.SyncAnswered("b1", OK))
    illegal(opened("VD"), act.SyncAnswered("b1", LOST, report(1)))


@pytest.mark.parametrize("bookies", [(), ("b4", "b5"), ("b1",), ("b3",)])
def test_unrequested_bookies_are_illegal(bookies):
    illegal(choosing("PD"), act.BookiesChosen(bookies))


def test_duplicate_chosen_bookie_is_illegal():
    writer = choosing("PD")
    writer.step(act.AddAnswered("b2", 1, 1, LOST))
    writer.step(act.BookiesChosen(("b4",)))  # chosen again, for both
    illegal(writer, act.BookiesChosen(("b4", "b4")))


@pytest.mark.parametrize("begin", [change_lost, close_lost])
def test_metadata_of_another_ledger_is_illegal(begin):
    illegal(begin("PD"), act.MetadataRead(replace(metadata(), ledger_id=8), 5))


@pytest.mark.parametrize("other", [{"write_quorum": 2}, {"replication": Replication.GUARANTEED}])
def test_metadata_with_other_choices_is_illegal(other):
    illegal(close_lost("PD"), act.MetadataRead(replace(metadata(), **other), 5))


def test_negative_length_is_illegal():
    illegal(opened("PD"), ev.Append(1, -1))


@pytest.mark.parametrize("response", [OK, LOST, Unknown(UnknownReason.FENCED)])
def test_answer_of_a_bookie_that_was_never_asked_is_illegal(response):
    """Such a bookie's FENCED answer ended the writer."""
    illegal(opened("PD"), act.AddAnswered("b9", 1, 1, response))
    illegal(opened("PD"), ev.ExplicitLacAnswered("b9", response, 1.0))
    synced = report(1) if response is OK else None
    illegal(opened("VD"), act.AddAnswered("b9", 1, 1, response, synced))
    illegal(opened("VD"), act.SyncAnswered("b9", response, synced))


def test_answer_of_a_replaced_bookie_is_legal():
    writer = changing("PD")
    writer.step(act.MetadataWritten(1))
    assert writer.step(act.AddAnswered("b3", 1, 1, OK)) == []
    assert writer.step(ev.ExplicitLacAnswered("b3", OK, 1.0)) == []


def test_report_of_unsent_entries_as_synced_is_illegal():
    """The writer believed it, and confirmed later entries before any bookie had them."""
    illegal(opened("VD"), act.AddAnswered("b1", 1, 1, OK, report(2)))
    illegal(opened("VD"), act.SyncAnswered("b1", OK, report(2)))
    opened("VD").step(act.SyncAnswered("b1", OK, report(1)))


def test_sync_report_of_a_striped_ledger_may_skip_ids_of_other_bookies():
    writer = LedgerWriter(metadata(e=4, wq=2, aq=2, ledger_type=LedgerType.VD_JOURNAL), 0)
    (send, _) = writer.step(ev.Append(1, 10))
    assert (send.bookies, send.assignment) == (("b1",), Assignment(0, 4, 2, 0))
    illegal(writer, act.AddAnswered("b1", 0, 0, OK, act.SyncReport(3, 1, send.assignment)))
    writer.step(act.AddAnswered("b1", 0, 0, OK, act.SyncReport(2, 1, send.assignment)))


def test_run_over_several_write_sets_and_empty_run_are_illegal():
    writer = LedgerWriter(metadata(e=4, wq=2, aq=2), 0)
    illegal(writer, ev.Append(2, 20))
    illegal(writer, ev.Append(0, 0))


# -- earlier defects


def test_unrequested_write_answer_does_not_close_an_open_ledger():
    """The writer reported CLOSED with an append pending."""
    writer = opened("PD")
    assert illegal(writer, act.MetadataWritten(1)) == "MetadataWritten while Asked is NOTHING"
    assert writer.state is State.OPEN
    assert writer.cursors.pending


def test_unrequested_metadata_does_not_close_an_open_ledger():
    """The writer requested the closing write."""
    illegal(opened("PD"), act.MetadataRead(metadata(), 0))


def test_ledger_is_closed_once():
    """The second close requested a second write."""
    writer = writing("PD")
    assert illegal(writer, ev.Close()) == "Close while State is WRITING"
    (finish,) = writer.step(act.MetadataWritten(1))
    assert finish.metadata.state is LedgerState.CLOSED
    illegal(writer, act.MetadataWritten(1))


@pytest.mark.parametrize("begin", [closing, writing, closed, failed(opened)])
def test_append_after_close_is_the_users_error(begin):
    with pytest.raises(LedgerClosedError, match="ledger 7 is closed; append to a new one"):
        begin("PD").step(ev.Append(1, 1))


def test_failed_writer_accepts_only_late_answers():
    writer = failed(changing)("PD")
    assert writer.step(act.MetadataWritten(1)) == []
    assert writer.metadata.fragments == (Fragment(0, ("b1", "b2", "b3")),)
    illegal(writer, act.BookiesChosen(("b4",)))


# -- form of the tables


def test_row_prefers_taken_over_refused_over_late():
    assert row(taken=(int,), late=(int, str, bool), refused=(str, int)) == {int: TAKEN, str: REFUSED, bool: LATE}


def test_unlisted_event_is_named_in_the_error():
    with pytest.raises(IllegalEventError, match="str while State is OPEN"):
        cell_of(TRANSITIONS, State.OPEN, "nonsense")
