"""Wrong proofs of the shared secret: the pause of an address that sent one.

Law: for ``PAUSE_SECONDS`` after a wrong proof, proofs from its address wait, right ones as well; at the end of the pause all
waiting ones are judged together. Proofs from other addresses don't wait.

An attacker who guesses on one connection after the other has one try a pause. On many connections at once the attacker has as
many tries a pause as a bookie keeps connections of strangers. A right client at the same address (a shared host, a gateway) waits
for a pause at most, however many guess beside it. A lower rate would need an order among the waiting proofs, by which guessers
could keep the client out: worse than more tries at a secret of 16 random bytes, which no rate finds.

Memory is bounded: ``ADDRESSES_MAX`` addresses. Of more, those with the oldest wrong proofs are forgotten. Who has more addresses
than that is not slowed down by their pauses.
"""

from __future__ import annotations

from collections import OrderedDict

PAUSE_SECONDS = 1.0
"""Well below a client's ``connect_timeout_seconds``, and the time of a stranger."""
ADDRESSES_MAX = 4096


class WrongProofs:
    """The addresses with a recent wrong proof, of one bookie. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()
        """Address → end of its pause, in the order of the ends."""

    def wait_seconds(self, address: str, now: float) -> float:
        """How long a proof that came from the address at ``now`` waits until it is judged."""
        return max(0.0, self._until.get(address, now) - now)

    def was_wrong(self, address: str, now: float) -> None:
        """A proof from the address was judged at ``now``, and was wrong."""
        until = self._until
        until.pop(address, None)
        while until and (len(until) >= ADDRESSES_MAX or next(iter(until.values())) <= now):
            until.popitem(last=False)
        until[address] = now + PAUSE_SECONDS

    def __len__(self) -> int:
        """Number of remembered addresses."""
        return len(self._until)
