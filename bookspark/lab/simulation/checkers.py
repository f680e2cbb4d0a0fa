"""The invariants, one function each. ``CHECKERS`` has them by name: ``check(view)`` returns a violation's description, or None.

Names are those of the TLA+ specification, where it has the invariant.

Example::

    from bookspark.lab.simulation.checkers import CHECKERS

    problems = {name: what for name, check in CHECKERS.items() if (what := check(world.view(state))) is not None}
"""

from __future__ import annotations

from bookspark.lab.simulation.clients.client import content_of
from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.simulation_options import CrashLoses
from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.accepted_loss import LossKind
from bookspark.protocol.ledger.ledger_metadata import LedgerState, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode


def no_machine_fails(view: WorldView) -> str | None:
    """Every event that can happen is decided.

    Law: no machine and no decision raises, for any event in any order: not for an event missing in its table, and not for an
    impossible record (an ensemble with a bookie twice, a last entry below the first). Impossible events, such as an answer
    without a request, have no effect (``clients.writer``).

    A writer whose time is over, or whose client can't go on, ends at once with an error. An idle writer sends its LAC (last add
    confirmed) to the bookies that may not know it, and on its user's request to all of them. Each of its reports to the user is
    news, never a step back. Bookies get the user's current LAC and LAFR (last add fully replicated). A new ensemble is
    reported. A writer gives up for lack of bookies only if the bookies of some write set without a refusal or a silence are
    fewer than an ack quorum.

    A recovery fences no bookie before the record says IN_RECOVERY: a bookie that lost its fences asks the record, and OPEN
    means that there was none.
    """
    for client in view.clients:
        if client.defect:
            return f"a {client.kind} failed: {client.defect}"
    return next((f"{name} failed: {bookie.defect}" for name, bookie in view.bookies.items() if bookie.defect), None)


def no_divergence_between_writer_and_metadata(view: WorldView) -> str | None:
    """A closed ledger ends at or after every entry confirmed to its writer.

    Law: while the metadata is CLOSED, no writer has a LAC (last add confirmed) above its last entry, unless an operator
    accepted a loss (``accepted_losses_are_losses`` judges that). Each of BookKeeper's published truncations broke this law
    (#2614, #2616; BP-46, scenarios 1 and 2). TLA+: ``NoDivergenceBetweenWriterAndMetaData``.
    """
    lac, metadata = view.writer.last_add_confirmed, view.metadata
    if metadata.closed and lac > metadata.last_entry_id and metadata.accepted_loss is None:
        return f"the ledger is closed at entry {metadata.last_entry_id}, and entry {lac} was confirmed to its writer"
    return None


def all_acked_entries_are_readable(view: WorldView) -> str | None:
    """A confirmed entry is on a bookie where readers look for it.

    Law: every entry up to the writer's LAC (last add confirmed) is on at least one bookie that the current metadata assigns to
    it, as long as fewer than AQ (ack quorum) copies may have been lost with disks: the promise of the durability mode. TLA+:
    ``AllAckedEntriesAreReadable``.
    """
    if view.deleted or view.lost_boots >= view.options.ack_quorum:
        return None
    for entry_id in range(view.writer.last_add_confirmed + 1):
        if not view.holders(entry_id):
            return f"entry {entry_id} was confirmed, and no bookie that the metadata assigns to it has it"
    return None


def all_committed_entries_reach_ack_quorum(view: WorldView) -> str | None:
    """A confirmed entry is on an ack quorum.

    Law: every entry up to the writer's LAC (last add confirmed) is on AQ (ack quorum) bookies that the current metadata assigns
    to it, less one for each possible loss of entries by a bookie. TLA+: ``AllCommittedEntriesReachAckQuorum``.
    """
    if view.deleted:
        return None
    needed = view.options.ack_quorum - view.lost_boots
    for entry_id in range(view.writer.last_add_confirmed + 1):
        holders = view.holders(entry_id)
        if len(holders) < needed:
            return f"entry {entry_id} was confirmed, and only {', '.join(holders) or 'nobody'} of its bookies has it"
    return None


def all_entries_of_closed_ledger_are_readable(view: WorldView) -> str | None:
    """Every entry of a closed ledger is on a bookie.

    Law: every entry up to the last one of a closed ledger is on at least one bookie that the metadata assigns to it, as long as
    fewer than AQ (ack quorum) copies may have been lost with disks. This is ``all_acked_entries_are_readable`` for entries that
    recovery confirmed. ``accepted_losses_are_losses`` judges entries that are given up.
    """
    if view.deleted or not view.metadata.closed or view.lost_boots >= view.options.ack_quorum:
        return None
    for entry_id in range(view.metadata.last_entry_id + 1):
        if not view.holders(entry_id) and not view.accepted_as_lost(entry_id):
            return f"the ledger is closed at entry {view.metadata.last_entry_id}, and nobody has entry {entry_id}"
    return None


def no_out_of_order_entries(view: WorldView) -> str | None:
    """Each entry has its own id everywhere.

    Law: every bookie's entry i is the writer's entry i. TLA+: ``NoOutOfOrderEntries``.
    """
    for name, bookie in view.bookies.items():
        for entry_id, row in bookie.rows.items():
            if row.content != content_of(entry_id):
                return f"{name} holds {row.content} as entry {entry_id}"
    return None


def last_add_confirmed_is_confirmed(view: WorldView) -> str | None:
    """A LAC (last add confirmed) that a bookie reports is confirmed.

    Law: the entry is confirmed to the writer, or the ledger is closed at or after it. Readers read up to the LAC (TLA+:
    ``NoDirtyReads``).
    """
    confirmed = view.writer.last_add_confirmed
    if view.metadata.closed:
        confirmed = max(confirmed, view.metadata.last_entry_id)
    for name, bookie in view.bookies.items():
        if bookie.ledger is not None and bookie.ledger.last_add_confirmed > confirmed:
            return f"{name} tells LAC {bookie.ledger.last_add_confirmed}, and only {confirmed} is confirmed"
    return None


def no_dirty_reads(view: WorldView) -> str | None:
    """A reader sees only confirmed entries, and its reads repeat.

    Law: no reader reads an unconfirmed entry, a second read gives the same value, a LAC (last add confirmed) never goes back
    and comes from a bookie, and no entry up to the LAC is reported missing (as long as fewer than AQ, the ack quorum, copies
    may have been lost with disks). An entry accepted as lost by an operator may have been read before. TLA+: ``NoDirtyReads``.
    """
    confirmed = view.writer.last_add_confirmed
    if view.metadata.closed:
        confirmed = max(confirmed, view.metadata.last_entry_id)
    for reader in view.readers:
        if reader.contradiction:
            return reader.contradiction
        for entry_id, content in reader.read.items():
            if entry_id > confirmed:
                return f"a reader read entry {entry_id}, and only {confirmed} is confirmed"
            if content != content_of(entry_id):
                return f"a reader read {content} as entry {entry_id}"
            if view.metadata.closed and entry_id > view.metadata.last_entry_id and view.metadata.accepted_loss is None:
                return f"a reader read entry {entry_id}, and the ledger is closed at {view.metadata.last_entry_id}"
        if reader.denied and not view.deleted and view.lost_boots < view.options.ack_quorum:
            return f"a reader was told that entry {min(reader.denied)} does not exist, and it is confirmed"
    return None


def closed_length_is_that_of_the_last_entry(view: WorldView) -> str | None:
    """The length of a closed ledger is the payload bytes up to its last entry.

    Law: each entry here is one byte long, so the length is the last id plus one, unless that entry was given up. A writer whose
    close lost its compare-and-set compares its length with the record's (docs/decisions/traps.md, trap 4), so a wrong length
    turns a good close into a failed one.
    """
    metadata = view.metadata
    if view.accepted_as_lost(metadata.last_entry_id):
        return None
    if metadata.closed and metadata.length != metadata.last_entry_id + 1:
        return f"the ledger is closed at entry {metadata.last_entry_id} with length {metadata.length}"
    return None


def accepted_losses_are_losses(view: WorldView) -> str | None:
    """Only lost entries are accepted as lost.

    Law: with an accepted loss, a confirmed entry may be cut off or given up only if an ack quorum of its copies may have been
    lost. If no other client (another recoverer, repair) may have written it back, no bookie has it either: an unreachable
    bookie keeps its entries.

    The record names the right bookies. For an entry that is given up, these stay its assigned bookies, because repair skips such
    entries and no others. For an unknown fence or end, each named bookie reported a loss itself, or the operator named it. A
    record with a loss says which: a ledger that could be closed without a loss has none.
    """
    options, metadata = view.options, view.metadata
    if view.deleted or metadata.accepted_loss is None:
        return None
    end = metadata.last_entry_id
    given_up = [entry_id for entry_id in range(end + 1) if view.accepted_as_lost(entry_id)]
    alone = options.recoverers == 1 and options.ensemble_changes is ChangeMode.OFF
    alone = alone and not (options.heals or options.replicators)
    confirmed = view.writer.last_add_confirmed
    for entry_id in (*given_up, *range(end + 1, confirmed + 1)):
        holders = [name for name, bookie in view.bookies.items() if entry_id in bookie.rows]
        # With two ledgers, a bookie that lost only the other's data can't know whether it held this entry.
        known = entry_id <= confirmed or not options.second_ledger
        if (known and view.lost_boots < options.ack_quorum) or (alone and holders):
            return (
                f"entry {entry_id} was confirmed and is accepted as lost, and {', '.join(holders) or 'nobody'} has it"
            )
    return next((wrong for wrong in (_about_others(view), _not_lost(view)) if wrong), None)


def _about_others(view: WorldView) -> str | None:
    """A loss without content, or of an entry on other bookies than its assigned ones."""
    loss = view.metadata.accepted_loss
    if loss is not None and not loss.losses:
        return "a loss was accepted, and the record does not say of what"
    for one in () if loss is None else loss.losses:
        for entry_id in range(one.first, one.last + 1) if one.kind is LossKind.ENTRIES else ():
            if entry_id > view.metadata.last_entry_id:
                return f"entry {entry_id} is given up, and the ledger is closed at {view.metadata.last_entry_id}"
            assigned = sorted(view.metadata.write_set_of(entry_id))
            if sorted(one.bookies) != assigned:
                return f"entry {entry_id} is given up on {', '.join(one.bookies)}, and is {', '.join(assigned)}'s"
    return None


def _not_lost(view: WorldView) -> str | None:
    """A bookie counted as lost without a name from the operator or a loss of its own."""
    loss = view.metadata.accepted_loss
    # With two ledgers, a boot may have lost only the other's data.
    if loss is None or view.options.second_ledger:
        return None
    for one in loss.losses:
        for name in one.bookies if one.kind is not LossKind.ENTRIES else ():
            bookie = view.bookies[name]
            # The boot counted for a departed bookie is not a real boot: no answer follows it.
            if name not in loss.named and bookie.lost_boots <= bookie.gone:
                return f"{name} counts as lost, nobody named it, and it lost nothing"
    return None


def what_recovery_wrote_is_synced(view: WorldView) -> str | None:
    """Entries written back by recovery outlive any crash that loses only unsynced data.

    Law: once a recoverer has closed the ledger, each entry that it wrote back is on an ack quorum of the bookies that the
    metadata assigns to it, however many bookies crash. Only a lost disk takes a copy away. Therefore a single positive answer
    is enough for a recovery read (docs/decisions/one-log.md and three-valued-answers.md).
    """
    if view.deleted:
        return None
    for recoverer in view.recoverers:
        if recoverer.outcome != "finished":
            continue
        for entry_id in recoverer.wrote_back:
            holders = view.holders(entry_id)
            if len(holders) < view.options.ack_quorum - view.disks_lost:
                return f"entry {entry_id} was written back and closed, and only {', '.join(holders) or 'nobody'} has it"
    return None


def tail_fragments_reach_write_quorum(view: WorldView) -> str | None:
    """All but the last fragment of a guaranteed ledger is on the whole write quorum.

    Law: every id up to LAFR (last add fully replicated), and every id of every fragment but the last, is on all bookies that the
    metadata assigns to it, less one for each possible loss of entries by a bookie. "Guaranteeing write quorum"; TLA+:
    ``TailFragmentsReachWriteQuorum``.
    """
    if view.deleted or view.options.replication is not Replication.GUARANTEED:
        return None
    needed = view.options.write_quorum - view.lost_boots
    last = max(view.writer.last_add_fully_replicated, view.metadata.last_fragment.first_entry_id - 1)
    for entry_id in range(last + 1):
        holders = view.holders(entry_id)
        if len(holders) < needed and not view.accepted_as_lost(entry_id):
            return (
                f"entry {entry_id} is below LAFR or the last fragment, and only {', '.join(holders) or 'nobody'} has it"
            )
    return None


def all_entries_of_closed_ledger_reached_write_quorum(view: WorldView) -> str | None:
    """A closed guaranteed ledger is on the whole write quorum.

    Law: every entry is on all bookies that the metadata assigns to it, less one for each possible loss of entries by a bookie,
    unless an operator gave the entry up. "Guaranteeing write quorum", tweaks 2 and 3; TLA+:
    ``AllEntriesOfClosedLedgerReachedWriteQuorum``.
    """
    if view.deleted or not view.metadata.closed or view.options.replication is not Replication.GUARANTEED:
        return None
    for entry_id in range(view.metadata.last_entry_id + 1):
        holders = view.holders(entry_id)
        if len(holders) < view.options.write_quorum - view.lost_boots and not view.accepted_as_lost(entry_id):
            return f"the ledger is closed, and only {', '.join(holders) or 'nobody'} has entry {entry_id}"
    return None


def told_ends_stay(view: WorldView) -> str | None:
    """An end reported to a client stays the ledger's end.

    Law: after a successful close or recovery, the ledger's record is CLOSED, with the reported last entry and length. Only repair
    changes the record later, and only its ensembles (docs/decisions/traps.md, trap 4).

    The closing record of a writer ends at or after every acknowledged entry. On a VD ledger (volatile durability) these are
    more than the confirmed entries: a ledger that the writer may not close with them stays open, for recovery (BP-14). If the
    user gets a successful close, every append was acknowledged and is part of the ledger.

    If a writer learns that its ledger belongs to another client, this is true: the record is no longer OPEN, or it was deleted,
    or a bookie fenced it at a lossy boot (BP-46).
    """
    if view.writer.cut_off:
        return f"the writer's own close left out {view.writer.cut_off} of the entries that its user counts on"
    if view.deleted:
        return None
    metadata = view.metadata
    may_be_fenced = view.lost_boots or view.options.second_ledger or metadata.state is not LedgerState.OPEN
    if view.writer.outcome == "LedgerFencedError" and not may_be_fenced:
        return "the writer was told that the ledger is another client's, and its record is OPEN"
    clients: tuple[WriterClient | RecovererClient, ...] = (view.writer, *view.recoverers)
    for client in clients:
        if client.told_end is not None and (
            not metadata.closed or client.told_end != (metadata.last_entry_id, metadata.length)
        ):
            last, length = client.told_end
            now = f"closed at {metadata.last_entry_id} with length {metadata.length}"
            return (
                f"a {client.kind} was told that the ledger is closed at entry {last} with length {length}, and it is "
                f"{now if metadata.closed else metadata.state.name}"
            )
    return None


def repairs_have_repaired(view: WorldView) -> str | None:
    """A repair keeps its word.

    Law: a copy named by a repair's record exists, synced: only the loss of its disk takes it away. The record of a successful
    repair no longer names the lost bookie, and lacks no copy that the log wants. Entries accepted as lost are exempt
    (docs/decisions/delta-snapshots.md).
    """
    if view.deleted:
        return None
    metadata = view.metadata
    crashes_lose_disks = view.options.crash_loses is CrashLoses.EVERYTHING
    for replicator in view.replicators:
        if replicator.still_named:
            return f"a repair ended well, and its record still names {replicator.still_named}, which it took for lost"
        if replicator.left_small:
            return "a repair ended well, and its record has fewer copies than the log wants"
        for entry_id, target in replicator.copied:
            bookie = view.bookies[target]
            lost_its_disk = bookie.gone or (crashes_lose_disks and bookie.lost_boots)
            # Other clients may have replaced it again, or have cut the ledger off before the entry.
            asked = target in metadata.write_set_of(entry_id) and not (
                metadata.closed and entry_id > metadata.last_entry_id
            )
            if asked and not lost_its_disk and not view.accepted_as_lost(entry_id) and entry_id not in bookie.rows:
                return f"a repair named {target} for entry {entry_id}, and {target} does not have it"
    return None


CHECKERS = {
    check.__name__: check
    for check in (
        no_machine_fails,
        no_divergence_between_writer_and_metadata,
        all_acked_entries_are_readable,
        all_committed_entries_reach_ack_quorum,
        all_entries_of_closed_ledger_are_readable,
        no_out_of_order_entries,
        last_add_confirmed_is_confirmed,
        no_dirty_reads,
        closed_length_is_that_of_the_last_entry,
        accepted_losses_are_losses,
        what_recovery_wrote_is_synced,
        tail_fragments_reach_write_quorum,
        all_entries_of_closed_ledger_reached_write_quorum,
        told_ends_stay,
        repairs_have_repaired,
    )
}
