"""What a person is told who restarts and stops bookies for a change: when to do it, that it was seen, and what to leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookspark.errors import BookieError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.operations.changes.applying import Applying
from bookspark.operations.changes.change_record import ChangeState
from bookspark.operations.changes.hands import AskOperator, Request
from bookspark.operations.changes.looking import Looking
from bookspark.protocol.changes.wanted import Wanted
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client import BookKeeper
from tests.system.cluster.test_changes import QUICK, filled, five
from tests.system.cluster.test_changes import client as client

pytestmark = pytest.mark.acceptance

__all__ = ["client", "five"]


class Operator(AskOperator):
    """Does what ``does`` does when he is asked, and keeps what he was told."""

    def __init__(self, does: Callable[[Request], None]) -> None:
        self.told: list[str] = []
        super().__init__(self.told.append)
        self._does = does

    def do(self, request: Request) -> None:
        super().do(request)
        self._does(request)


def of(cluster: LocalCluster, request: Request) -> LocalBookie:
    return next(one for one in cluster.bookies if one.bookie_id == request.bookie_id)


def run(client: BookKeeper, operator: Operator, wanted: Wanted, config: ChangesConfig = QUICK) -> ChangeState:
    with Applying(client, operator, config) as applying:
        applying.begin(wanted)
        return applying.run().state


def test_what_was_done_is_told_as_done(five: LocalCluster, client: BookKeeper) -> None:
    """It was told as "don't do this any more: restart … (it is done)"."""
    filled(client, 3)

    def restart(request: Request) -> None:
        of(five, request).stop()
        of(five, request).start()

    operator = Operator(restart)
    name = five.bookies[0].bookie_id
    assert run(client, operator, Wanted(restart=frozenset([name]))) is ChangeState.COMPLETE
    assert operator.told == [f"do this now: restart {name}", f"done: restart {name}"]


@pytest.mark.parametrize("kill", [False, True])
def test_a_bookie_that_ends_while_it_is_looked_at_was_ended_as_asked(
    five: LocalCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    """Who had just stopped a bookie as he was asked to was told not to do it any more. A killed one is registered for a while."""
    filled(client, 3)
    asked: list[Request] = []
    operator = Operator(asked.append)
    renew = Looking.renew

    def stopped_meanwhile(looking: Looking, bookie_id: str) -> dict[int, LedgerMetadata]:
        while asked:
            bookie = of(five, asked.pop())
            bookie.kill() if kill else bookie.stop()
        return renew(looking, bookie_id)

    monkeypatch.setattr(Looking, "renew", stopped_meanwhile)
    name = five.bookies[0].bookie_id
    assert run(client, operator, Wanted(remove=frozenset([name]))) is ChangeState.COMPLETE
    assert operator.told == [f"do this now: stop {name} for good", f"done: stop {name} for good"]


def test_a_request_is_taken_back_when_another_bookie_dies(five: LocalCluster, client: BookKeeper) -> None:
    """Nothing was a step any more, and so nobody told who had been asked."""
    filled(client)
    name = five.bookies[0].bookie_id

    def another_dies(_: Request) -> None:
        for one in five.bookies[1:3]:
            one.kill()

    operator = Operator(another_dies)
    short = ChangesConfig(poll_seconds=0.1, confirm_seconds=0.1, stall_seconds=1.0)
    with pytest.raises(BookieError, match="nothing has happened for 1 s"):
        run(client, operator, Wanted(restart=frozenset([name])), short)
    asked, taken_back = operator.told
    assert asked == f"do this now: restart {name}"
    assert taken_back.startswith(f"don't do this any more: restart {name} (")
