"""Messages to an operator who restarts and stops bookies for a change."""

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
    """Performs ``does`` on each request, and keeps the messages."""

    def __init__(self, does: Callable[[Request], None]) -> None:
        self.told: list[str] = []
        super().__init__(self.told.append)
        self._does = does

    def do(self, request: Request, note: Callable[[], None]) -> None:
        super().do(request, note)
        self._does(request)


def of(cluster: LocalCluster, request: Request) -> LocalBookie:
    return next(one for one in cluster.bookies if one.bookie_id == request.bookie_id)


def run(client: BookKeeper, operator: Operator, wanted: Wanted, config: ChangesConfig = QUICK) -> ChangeState:
    with Applying(client, operator, config) as applying:
        applying.begin(wanted)
        return applying.run().state


def test_operator_sees_a_completed_request_as_done(five: LocalCluster, client: BookKeeper) -> None:
    """The message was "don't do this any more: restart … (it is done)"."""
    filled(client, 3)

    def restart(request: Request) -> None:
        of(five, request).stop()
        of(five, request).start()

    operator = Operator(restart)
    name = five.bookies[0].bookie_id
    assert run(client, operator, Wanted(restart=frozenset([name]))) is ChangeState.COMPLETE
    assert operator.told == [f"do this now: restart {name}", f"done: restart {name}"]


@pytest.mark.parametrize("kill", [False, True])
def test_bookie_that_stops_during_a_look_counts_as_stopped_on_request(
    five: LocalCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    """An operator who had just stopped a bookie on request got the message not to do it any more. A killed bookie stays
    registered for a while."""
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


def test_request_to_the_operator_is_withdrawn_when_another_bookie_dies(five: LocalCluster, client: BookKeeper) -> None:
    """No step was left, so the operator got no message."""
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
