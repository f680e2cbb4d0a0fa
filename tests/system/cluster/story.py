"""A ledger whose bookies fail as in the figures of "Guaranteeing write quorum", over a wire that a test controls.

WQ 3, AQ 2, as in the paper. A bookie that "fails on e" never gets e, and then its link to the writer is cut.
"""

from __future__ import annotations

from bookspark import errors
from bookspark.protocol.ledger.actions import ChooseBookies, NoBookies, WriteMetadata
from bookspark.store.wire.header import Kind
from tests.awaiting import await_that

SECONDS = 90.0


class Story:
    """A ledger whose bookies are named as in the paper: b1, b2, b3 are the first ensemble, later bookies are b4 and up."""

    def __init__(self, cluster, replication, ledger_type="PD_JOURNAL", **options):
        self.cluster, self.wire = cluster, cluster.wire
        # The writer sends no explicit LAC (last add confirmed), which would carry the LAFR (last add fully replicated) as
        # well.
        self.client = cluster.bookkeeper(
            client_name="writer", explicit_lac_interval_seconds=3600.0, answer_timeout_seconds=SECONDS, **options
        )
        self.ledger = self.client.create_ledger(ledger_type=ledger_type, replication=replication)
        self._ids = list(self.ledger.metadata.last_fragment.ensemble)

    def id_of(self, name):
        return self._ids[int(name[1:]) - 1]

    @property
    def fragments(self):
        """(first entry, bookies by the paper's names) of each fragment."""
        return self.named(self.ledger.metadata.fragments)

    def named(self, fragments):
        for fragment in fragments:
            self._ids += [bookie for bookie in fragment.ensemble if bookie not in self._ids]
        return [(f.first_entry_id, tuple(f"b{self._ids.index(b) + 1}" for b in f.ensemble)) for f in fragments]

    @property
    def ensemble(self):
        return self.fragments[-1][1]

    def append(self):
        """Append an entry, and return once it is acknowledged."""
        self.ledger.append(b"e%d" % (self.ledger.last_add_pushed + 1))

    def loses(self, *names):
        """From here on, adds from the writer to these bookies are lost."""
        ids = {self.id_of(name) for name in names}
        return self.wire.drop(Kind.ADD, client="writer", where=lambda message: message.bookie in ids)

    def parks_all_but(self, *names):
        """From here on, adds from the writer to all other bookies are parked."""
        ids = {self.id_of(name) for name in names}
        return self.wire.park(Kind.ADD, client="writer", where=lambda message: message.bookie not in ids)

    def cut(self, *names):
        """The bookies fail; returns once the writer has noticed: it can't reach them, or has replaced them."""
        ids = {self.id_of(name) for name in names}
        for bookie_id in ids:
            self.wire.cut(bookie_id, client="writer")
        unreachable = self.client.context.runtime.connections.quarantined
        await_that(lambda: ids & set(self.ledger.metadata.last_fragment.ensemble) <= set(unreachable()))

    def fails_on_the_next(self, name):
        """A bookie fails on the next entry, which the others acknowledge; returns once it is replaced."""
        with self.loses(name):
            self.append()
            self.cut(name)
            await_that(lambda: name not in self.ensemble)

    def without_spares(self):
        """From here on, placement has no other bookies."""
        from_store = self.client.context.answer_from_store

        def answer(ledger_id, action):
            if isinstance(action, ChooseBookies):
                return NoBookies(errors.NotEnoughBookiesError("there are no spares"))
            return from_store(ledger_id, action)

        self.client.context.answer_from_store = answer

    def changes(self):
        """A list that receives the fragments of each ensemble change from here on. With most links cut, changes follow each
        other quickly, and the metadata soon differs from the result of the first change."""
        made, from_store = [], self.client.context.answer_from_store

        def answer(ledger_id, action):
            if isinstance(action, WriteMetadata):
                made.append(action.metadata.fragments)
            return from_store(ledger_id, action)

        self.client.context.answer_from_store = answer
        return made

    def fully_replicated(self, entry):
        await_that(lambda: self.ledger.last_add_fully_replicated == entry)
