"""Rates of single addresses: a burst, then so many a second, for each address alone, in a bounded table."""

from __future__ import annotations

from bookspark.protocol.bookie.address_rates import AddressRates


def test_burst_then_the_rate() -> None:
    rates = AddressRates(per_second=2, burst=3)
    assert [rates.take("a", 100.0) for _ in range(5)] == [True, True, True, False, False]
    assert rates.wait("a", 100.0) == 0.5
    assert [rates.take("a", 100.5) for _ in range(2)] == [True, False]
    assert [rates.take("a", 1000.0) for _ in range(4)] == [True, True, True, False]


def test_address_does_not_pay_for_another() -> None:
    rates = AddressRates(per_second=1, burst=1)
    assert rates.take("a", 0.0) and not rates.take("a", 0.0)
    assert rates.take("b", 0.0)


def test_refused_events_are_not_counted_and_spent_ones_are() -> None:
    rates = AddressRates(per_second=1, burst=1)
    for _ in range(100):
        rates.take("a", 0.0)
    assert rates.wait("a", 0.0) == 1
    for _ in range(9):
        rates.spend("a", 0.0)
    assert rates.wait("a", 0.0) == 10


def test_pause_after_an_event_is_no_longer_however_many_come_in_it() -> None:
    """Wrong proofs of a secret: a right client beside those who guess waits for one pause at most."""
    pauses = AddressRates(per_second=1, burst=1)
    for guess in range(1000):
        assert pauses.wait("a", 10.0 + guess / 1000) <= 1
        pauses.take("a", 10.0 + guess / 1000)
    assert pauses.wait("a", 11.0) == 0 and pauses.wait("b", 10.0) == 0


def test_table_is_bounded_and_forgets_the_oldest() -> None:
    rates = AddressRates(per_second=1, burst=1, addresses_max=3)
    for number in range(1000):
        assert rates.take(f"address {number}", 0.0)
    assert len(rates) == 3
    assert not rates.take("address 999", 0.0)
    assert rates.take("address 0", 0.0)
