"""Pauses of addresses that send wrong proofs of the shared secret, by a given clock."""

from __future__ import annotations

from bookspark.protocol.bookie.wrong_proofs import ADDRESSES_MAX, PAUSE_SECONDS, WrongProofs


def test_proofs_of_an_address_wait_for_a_pause_after_each_wrong_one():
    wrong = WrongProofs()
    assert wrong.wait_seconds("a", 10.0) == 0
    wrong.was_wrong("a", 10.0)
    assert wrong.wait_seconds("a", 10.0) == PAUSE_SECONDS
    assert wrong.wait_seconds("a", 10.0 + PAUSE_SECONDS / 4) == PAUSE_SECONDS * 3 / 4
    assert wrong.wait_seconds("b", 10.0) == 0, "other addresses don't wait"
    wrong.was_wrong("a", 10.0 + PAUSE_SECONDS / 2)
    assert wrong.wait_seconds("a", 10.0 + PAUSE_SECONDS) == PAUSE_SECONDS / 2
    assert wrong.wait_seconds("a", 10.0 + PAUSE_SECONDS * 2) == 0


def test_a_right_proof_waits_for_one_pause_however_many_guess_beside_it():
    """What waits is judged at the end of its wait, not asked to wait again."""
    wrong, now = WrongProofs(), 10.0
    wrong.was_wrong("a", now)
    for guess in range(1000):
        assert wrong.wait_seconds("a", now + guess / 1000) <= PAUSE_SECONDS
        wrong.was_wrong("a", now + guess / 1000)


def test_number_of_remembered_addresses_is_bounded():
    wrong = WrongProofs()
    for number in range(3 * ADDRESSES_MAX):
        wrong.was_wrong(f"{number}", 10.0)
    assert len(wrong) == ADDRESSES_MAX
    assert wrong.wait_seconds("0", 10.0) == 0, "the oldest is forgotten"
    assert wrong.wait_seconds(f"{3 * ADDRESSES_MAX - 1}", 10.0) == PAUSE_SECONDS
    wrong.was_wrong("later", 10.0 + PAUSE_SECONDS)
    assert len(wrong) == 1, "ended pauses are forgotten"
