"""Requests with another master key than the one that the bookie keeps for their ledger: they wait for the ledger's metadata.

Law: as in ``protocol.bookie.key_meeting``; the looks are ``metadata_looks``. A refused key of a ledger is refused without a look
for some seconds. A storage without a metadata store refuses every other key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from bookspark.protocol.bookie.key_meeting import KEYS_UNDECIDED, KeyMeeting
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.ledgers.metadata_looks import MetadataLooks, Question, Waiting
from bookspark.store.wire.header import Status

KeyCheck = Callable[[int, bytes], Positive | Unknown]
"""``check(ledger_id, master_key)``: ``key_meeting.answer_meeting`` by the current metadata. It may block, but not for ever."""

_REFUSED_SECONDS = 5.0
_REFUSED_MAX = 10_000

log = logging.getLogger(__name__)


class KeyMeetings:
    """The meetings of one bookie. Owned by the loop."""

    def __init__(
        self,
        check: KeyCheck | None,
        control: ControlState,
        looks: MetadataLooks,
        take_over: Callable[[int, bytes], None],
    ) -> None:
        """``take_over(ledger_id, master_key)``: the metadata decided for this key, so all else about the ledger goes."""
        self._check = check
        self._control = control
        self._looks = looks
        self._take_over = take_over
        self._second: dict[tuple[int, bytes], KeyMeeting] = {}
        """Meetings whose metadata is read once more."""
        self._stopped: dict[int, bytes] = {}
        """By stopped ledger, the key that met the kept one. Requests with any key wait for its second look, and then go on."""
        self._refused: dict[tuple[int, bytes], float] = {}
        """Keys refused by the metadata, each with the end of its time by the monotonic clock, ascending."""

    def wait(self, ledger_id: int, master_key: bytes, again: Callable[[], None], done: Done, size: int = 0) -> None:
        """Call ``again`` once the ledger has this key or goes on with the kept one; otherwise ``done`` with UNAUTHORIZED, LIMBO
        or TOO_MANY_REQUESTS. ``size``: bytes of the request."""
        if self._check is None:
            done(Status.UNAUTHORIZED)
            return
        now = time.monotonic()
        while self._refused and (oldest := next(iter(self._refused.items())))[1] <= now:
            del self._refused[oldest[0]]
        if (ledger_id, master_key) in self._refused:
            done(Status.UNAUTHORIZED)
        elif (met := self._stopped.get(ledger_id)) is not None:
            self._looks.ask(self._question(self._check, ledger_id, met), again, lambda status: again(), size)
        else:
            self._looks.ask(self._question(self._check, ledger_id, master_key), again, done, size)

    def _question(self, check: KeyCheck, ledger_id: int, master_key: bytes) -> Question:
        return Question(
            ("keys", ledger_id, master_key),
            partial(check, ledger_id, master_key),
            KEYS_UNDECIDED,
            partial(self._looked, check, ledger_id, master_key),
        )

    def _looked(
        self,
        check: KeyCheck,
        ledger_id: int,
        master_key: bytes,
        answer: Positive | Unknown,
        waiting: Sequence[Waiting],
    ) -> None:
        meeting = self._second.pop((ledger_id, master_key), KeyMeeting())
        decision = meeting.looked(answer)
        ledger = self._control.ledgers.get(ledger_id)
        if decision is None:
            if ledger is None or not ledger.keys_meet(master_key):
                # Forgotten, or decided meanwhile.
                decision = Positive()
            else:
                ledger.stopped = True
                self._second[ledger_id, master_key] = meeting
                self._stopped.setdefault(ledger_id, master_key)
                self._looks.ask_again(self._question(check, ledger_id, master_key), waiting)
                return
        elif meeting.stopped and isinstance(decision, Positive):
            log.warning("ledger %d was begun here with another key than the metadata has: those entries go", ledger_id)
            self._take_over(ledger_id, master_key)
            ledger = self._control.ledgers.get(ledger_id)
        elif decision == UNAUTHORIZED and len(self._refused) < _REFUSED_MAX:
            self._refused[ledger_id, master_key] = time.monotonic() + _REFUSED_SECONDS
        if meeting.stopped:
            self._stopped.pop(ledger_id, None)
            if ledger is not None:
                ledger.stopped = False
        for one in waiting:
            self._looks.answer(one, decision)
