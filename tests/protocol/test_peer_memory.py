"""The budget of the memory that peers make a bookie hold, and the deadline of a frame, with a given clock."""

from __future__ import annotations

import random

from bookspark.protocol.bookie.peer_memory import (
    FRAME_BYTES_PER_SECOND,
    FRAME_SECONDS,
    IDLE_SECONDS,
    NOTHING_HELD,
    End,
    Held,
    PeerMemory,
    Shrink,
)

MIB = 1 << 20


def ended(actions):
    return [action.peer for action in actions if isinstance(action, End)]


def run(memory, seconds, start=0.0, reading=True):
    """Tick each second; returns the actions, and the second of each."""
    made = []
    for second in range(int(seconds) + 1):
        made += [(second, action) for action in memory.tick(start + second, reading)]
    return made


def test_above_the_budget_the_oldest_of_the_address_with_most_ends():
    memory = PeerMemory(64 * MIB)
    for number in range(3):
        assert memory.holds(f"lone {number}", f"address {number}", False, Held(5 * MIB, frame=1)) == []
    made = []
    for number in range(20):
        made += memory.holds(f"crowd {number}", "crowd", False, Held(15 * MIB, frame=1))
        assert memory.bound <= 64 * MIB
    assert ended(made) == [f"crowd {number}" for number in range(17)]


def test_known_peer_finishes_its_frames_beside_any_number_of_new_ones():
    """4,000 strangers, each at an address of its own, as on loopback or with IPv6, hold 15 MiB for good."""
    memory = PeerMemory(256 * MIB)
    made = []
    for number in range(4000):
        made += memory.holds("owner", "owner", True, Held(16 * MIB - 1, frame=number))
        made += memory.holds(f"stranger {number}", f"address {number}", False, Held(15 * MIB, frame=1))
        assert memory.bound + memory.slack <= 256 * MIB
    assert "owner" not in ended(made) and len(made) > 3900


def test_known_peers_that_hold_all_leave_half_to_new_ones():
    memory = PeerMemory(64 * MIB)
    for number in range(4):
        memory.holds(f"known {number}", "a", True, Held(15 * MIB, frame=1))
    assert ended(memory.holds("new 1", "b", False, Held(15 * MIB, frame=1))) == ["known 0"]
    assert ended(memory.holds("new 2", "b", False, Held(15 * MIB, frame=1))) == ["known 1"]
    assert ended(memory.holds("new 3", "b", False, Held(15 * MIB, frame=1))) == ["new 1"]


def test_younger_frame_makes_its_holder_the_youngest():
    memory = PeerMemory(64 * MIB)
    for peer in "abcd":
        memory.holds(peer, "x", False, Held(15 * MIB, frame=1))
    memory.holds("a", "x", False, Held(15 * MIB, frame=2))
    assert ended(memory.holds("e", "x", False, Held(15 * MIB, frame=1))) == ["b"]


def test_slack_is_released_before_any_connection_ends():
    memory = PeerMemory(64 * MIB)
    for number in range(20):
        memory.holds(number, "x", False, Held(bound=100, slack=2 * MIB))
    made = memory.holds("y", "x", False, Held(bound=40 * MIB))
    assert made and all(isinstance(action, Shrink) for action in made)
    assert memory.bound + memory.slack <= 64 * MIB


def test_unused_slack_is_released_after_a_while():
    memory = PeerMemory(64 * MIB)
    memory.holds("a", "x", False, Held(slack=MIB))
    assert run(memory, 60) == [(IDLE_SECONDS, Shrink("a"))]
    assert len(memory) == memory.slack == 0


def test_frame_ends_at_its_deadline_whatever_arrives_meanwhile():
    memory = PeerMemory(64 * MIB)
    size = 16 * MIB
    allowed = FRAME_SECONDS + size / FRAME_BYTES_PER_SECOND
    memory.holds("slow", "x", False, Held(1, frame=7))
    for second in range(int(allowed) + 1):
        made = memory.tick(float(second), True)
        assert ended(made) == (["slow"] if second >= allowed else [])
        if not made:
            memory.holds("slow", "x", False, Held(second + 2, frame=7, frame_bytes=size))
    assert len(memory) == 0


def test_each_frame_has_its_own_deadline():
    memory = PeerMemory(64 * MIB)
    for second in range(100):
        memory.holds("a", "x", True, Held(100, frame=second // 5 + 1, frame_bytes=200))
        assert memory.tick(float(second), True) == []


def test_only_time_counts_in_which_the_bookie_reads():
    memory = PeerMemory(64 * MIB)
    memory.holds("a", "x", False, Held(100, frame=1))
    assert run(memory, 60, reading=False) == []
    # The process was stopped for an hour.
    assert memory.tick(61.0, True) == memory.tick(3661.0, True) == []
    assert ended([action for _, action in run(memory, 60, 3662.0)]) == ["a"]


def test_peer_behind_its_own_unread_answers_has_no_deadline():
    memory = PeerMemory(64 * MIB)
    memory.holds("a", "x", False, Held(100, frame=0))
    assert run(memory, 1000) == []


def test_sums_stay_exact_in_random_histories():
    for seed in range(50):
        chance = random.Random(seed)
        memory = PeerMemory(64 * MIB)
        now, told = 0.0, {}
        for _ in range(300):
            peer = chance.randrange(12)
            if chance.random() < 0.1:
                memory.forget(peer)
                told.pop(peer, None)
                continue
            held = chance.choice([NOTHING_HELD, Held(chance.randrange(16 * MIB), chance.randrange(2 * MIB), peer, 1)])
            told[peer] = held
            made = memory.holds(peer, f"address {peer % 3}", chance.random() < 0.5, held)
            if chance.random() < 0.2:
                now += 1
                made += memory.tick(now, True)
            for action in made:
                told[action.peer] = told[action.peer]._replace(slack=0)
                if isinstance(action, End):
                    del told[action.peer]
            assert memory.bound == sum(held.bound for held in told.values()) <= 64 * MIB
            assert memory.slack == sum(held.slack for held in told.values())
