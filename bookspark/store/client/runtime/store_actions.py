"""A machine's requests to the metadata store, each carried out and answered with an event.

Law: an error of the store is an answer like any other. Only a lost compare-and-set, a full record and too few bookies have
answers of their own; everything else is ``MetadataFailed``, after which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.errors import BookKeeperError, MetadataVersionError, NotEnoughBookiesError, RecordFullError
from bookspark.protocol.ledger import actions as act
from bookspark.store.metadata.store import MetadataStore

StoreAction = act.ReadMetadata | act.WriteMetadata | act.ChooseBookies
StoreAnswer = (
    act.MetadataRead
    | act.MetadataWritten
    | act.MetadataConflict
    | act.RecordFull
    | act.MetadataFailed
    | act.BookiesChosen
    | act.NoBookies
)


def answer_from_store(
    store: MetadataStore, ledger_id: int, action: StoreAction, choose: Callable[[act.ChooseBookies], tuple[str, ...]]
) -> StoreAnswer:
    """Carry out a machine's request to the metadata store, and wait for the answer. ``choose`` is the placement.

    Errors of the store, and too few bookies, are answers too.
    """
    try:
        if isinstance(action, act.ReadMetadata):
            return act.MetadataRead(*store.read_ledger(ledger_id))
        if isinstance(action, act.WriteMetadata):
            return act.MetadataWritten(store.write_ledger(action.metadata, action.version))
        return act.BookiesChosen(choose(action))
    except MetadataVersionError:
        return act.MetadataConflict()
    except RecordFullError as error:
        return act.RecordFull(error)
    except NotEnoughBookiesError as error:
        return act.NoBookies(error)
    except BookKeeperError as error:
        return act.MetadataFailed(error)
