"""The driver of the protocol's machines that recover or repair one ledger, in the caller's thread.

Law: the driver decides nothing. It sends the machine's requests to bookies and metadata store, in order, and each answer
goes back to the machine as an event. An action for the caller ends ``run``, and the machine goes on with the next ``run``.
No wait lasts past the deadline: its passing is an event too, and ends the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.network.ledger_requests import BookieAction
from bookspark.store.client.network.mailbox import Mailbox
from bookspark.store.client.runtime.client_context import ClientContext, StoreAction, StoreAnswer


class MachineDriver:
    def __init__(
        self, context: ClientContext, metadata: LedgerMetadata, password: bytes | None, timeout_seconds: float
    ) -> None:
        """``password`` is None for repair, which does not know it; digests that need it are not checked then.

        ``timeout_seconds``: how long the machine may take, from now on.
        """
        self._context = context
        self._metadata = metadata
        self._requests = context.requests(metadata, password)
        self._mailbox = Mailbox(timeout_seconds)

    def run(self, step: Callable[[Any], Iterable[Any]], actions: Iterable[Any]) -> Any:
        """Carry out ``actions`` and the actions that follow from them. ``step`` is the machine's.

        Returns the first action for the caller; the last such action is ``Finish``. Raises the machine's error.
        """
        while True:
            for action in actions:
                match action:
                    case act.Fail(error):
                        raise error
                    case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                        self._mailbox.put(self._ask_store(action))
                    case act.SendAdd() | act.SendRead() | act.SendReadLac() | act.SendListHeld():
                        self._before(action)
                        self._send(action)
                    case _:
                        return action
            actions = step(self._mailbox.take())

    def _ask_store(self, action: StoreAction) -> StoreAnswer:
        return self._context.answer_from_store(self._metadata, action)

    def _send(self, action: BookieAction) -> None:
        """Send a request to bookies. Subclasses may send it in another way."""
        self._requests.send(action, self._mailbox.put)

    def _before(self, action: BookieAction) -> None:
        """Called before a request is sent to bookies; subclasses may wait here."""
