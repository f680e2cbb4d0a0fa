"""Rates of what single addresses may cause, such as TLS handshakes or wrong proofs of a secret.

Law: of one address at most ``burst`` events come at once, and ``per_second`` later on. Addresses don't share anything. The table
holds ``addresses_max`` addresses; beyond these the one with the oldest event is forgotten, which only ever allows more.

An address is an opaque string; a bookie passes an IPv4 address, or the first 64 bits of an IPv6 address.

Source: the generic cell rate algorithm of ATM (ITU-T I.371): one number for each address, the time of its paid-up past.
"""

from __future__ import annotations


class AddressRates:
    def __init__(self, per_second: float, burst: int, addresses_max: int = 4096) -> None:
        self._interval = 1 / per_second
        self._tolerance = (burst - 1) * self._interval
        self._addresses_max = addresses_max
        self._paid_until: dict[str, float] = {}
        """Address → the second at which its whole burst is free again; the oldest event first."""

    def wait(self, address: str, now: float) -> float:
        """Seconds until the address may cause the next event; 0: at once. ``now``: of any steady clock, in seconds."""
        return max(0.0, self._paid_until.get(address, now) - self._tolerance - now)

    def spend(self, address: str, now: float) -> None:
        """Count an event of the address, also one above its rate."""
        paid_until = max(self._paid_until.pop(address, now), now) + self._interval
        if len(self._paid_until) >= self._addresses_max:
            del self._paid_until[next(iter(self._paid_until))]
        self._paid_until[address] = paid_until

    def take(self, address: str, now: float) -> bool:
        """Count an event of the address if its rate allows it. False: not now, and nothing is counted."""
        if self.wait(address, now) > 0:
            return False
        self.spend(address, now)
        return True

    def __len__(self) -> int:
        """Number of addresses in the table."""
        return len(self._paid_until)
