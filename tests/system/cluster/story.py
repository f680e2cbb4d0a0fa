"""A ledger whose bookies fail as the figures of "Guaranteeing write quorum" tell it, over a wire that a test holds.

WQ 3, AQ 2, as in the paper. A bookie "fails on e" here: it never gets e, and then its link to the writer is cut.
"""

from __future__ import annotations

from bookspark import errors
from bookspark.protocol.ledger.actions import ChooseBookies, NoBookies, WriteMetadata
from bookspark.store.wire.header import Kind
from tests.awaiting import await_that

SECONDS = 90.0


class Story:
    """One ledger, whose bookies are called as in the paper: b1, b2, b3 are the first ensemble, b4 and up come in their order."""

    def __init__(self, cluster, replication, ledger_type="PD_JOURNAL", **options):
        self.cluster, self.wire = cluster, cluster.wire
        # The writer tells no explicit LAC (last add confirmed), which would carry the LAFR (last add fully replicated) as well.
        self.client = cluster.bookkeeper(
            client_name="writer", explicit_lac_interval_seconds=3600.0, answer_timeout_seconds=SECONDS, **options
        )
        self.ledger = self.client.create_ledger(ledger_type=ledger_type, replication=replication)
        self._ids = list(self.ledger.metadata.last_fragment.ensemble)

    def id_of(self, name):
        return self._ids[int(name[1:]) - 1]

    @property
    def fragments(self):
        """(first entry, the bookies by the paper's names) of each."""
        return self.named(self.ledger.metadata.fragments)

    def named(self, fragments):
        for fragment in fragments:
            self._ids += [bookie for bookie in fragment.ensemble if bookie not in self._ids]
        return [(f.first_entry_id, tuple(f"b{self._ids.index(b) + 1}" for b in f.ensemble)) for f in fragments]

    @property
    def ensemble(self):
        return self.fragments[-1][1]

    def append(self):
        """One more entry; returns once it is acknowledged."""
        self.ledger.append(b"e%d" % (self.ledger.last_add_pushed + 1))

    def loses(self, *names):
        """What the writer sends to these bookies is lost from here on."""
        ids = {self.id_of(name) for name in names}
        return self.wire.drop(Kind.ADD, client="writer", where=lambda message: message.bookie in ids)

    def parks_all_but(self, *names):
        """What the writer sends to other bookies than these is held."""
        ids = {self.id_of(name) for name in names}
        return self.wire.park(Kind.ADD, client="writer", where=lambda message: message.bookie not in ids)

    def cut(self, *names):
        """The bookies fail; returns once the writer knows: it can't reach them again, or has replaced them."""
        ids = {self.id_of(name) for name in names}
        for bookie_id in ids:
            self.wire.cut(bookie_id, client="writer")
        unreachable = self.client.context.runtime.connections.quarantined
        await_that(lambda: ids & set(self.ledger.metadata.last_fragment.ensemble) <= set(unreachable()))

    def fails_on_the_next(self, name):
        """A bookie fails on the next entry, which the others acknowledge; returns when it is replaced."""
        with self.loses(name):
            self.append()
            self.cut(name)
            await_that(lambda: name not in self.ensemble)

    def without_spares(self):
        """Placement finds no other bookies from here on."""
        from_store = self.client.context.answer_from_store

        def answer(ledger_id, action):
            if isinstance(action, ChooseBookies):
                return NoBookies(errors.NotEnoughBookiesError("there are no spares"))
            return from_store(ledger_id, action)

        self.client.context.answer_from_store = answer

    def changes(self):
        """A list that gets the fragments of each ensemble change from here on. With most links cut, one follows another, and what
        the ledger's metadata says is soon not what the first one made of it."""
        made, from_store = [], self.client.context.answer_from_store

        def answer(ledger_id, action):
            if isinstance(action, WriteMetadata):
                made.append(action.metadata.fragments)
            return from_store(ledger_id, action)

        self.client.context.answer_from_store = answer
        return made

    def fully_replicated(self, entry):
        await_that(lambda: self.ledger.last_add_fully_replicated == entry)
