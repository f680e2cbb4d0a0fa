"""Placement, creation and payloads by hand: each bound from both sides."""

from __future__ import annotations

from random import Random

import pytest

from bookspark.client.placement.placement import Placement, Topology, _neighbours, _shuffled
from bookspark.errors import (
    NotEnoughBookiesError,
)
from bookspark.metadata.records.bookie_registration import BookieRegistration


class Fixed(Random):
    """Each number the same: bookies are chosen in the order of their names, by weight."""

    def random(self):
        return 0.5


def racks(**places):
    return Topology({name: BookieRegistration(name, "here:1", 1, rack=rack) for name, rack in places.items()})


def hosts(**places):
    return Topology({name: BookieRegistration(name, "here:1", 1, host=host) for name, host in places.items()})


def avoiding(topology, *names):
    return Topology(topology.bookies, dict.fromkeys(names, "why"), topology.free_bytes)


# -- who is chosen


def test_as_many_places_as_bookies_are_filled_and_no_more():
    for ring, chosen in (
        ([None] * 3, ("a", "b", "c")),
        (["x", None, None, None], ("x", "a", "b", "c")),
        ([None] * 4, None),
    ):
        topology = racks(a="A", b="B", c="C", x="X")
        assert Placement()._fill(ring, ["a", "b", "c"], topology, 3, Fixed()) == chosen
    assert Placement()._fill([], [], racks(), 3, Fixed()) == ()


def test_half_of_the_attempts_avoid_bookies_in_quarantine_and_the_others_do_not():
    """To keep the racks apart is more important."""
    seen = []

    class Noting(Placement):
        def _fill_in_order(self, ring, order, last, topology, write_quorum):
            seen.append(bool(last))

    topology = avoiding(racks(a="A"), "a")
    assert Noting()._fill([None], ["a"], topology, 1, Random(0)) is None
    assert seen == [True] * 5 + [False] * 5


@pytest.mark.parametrize(
    ("place", "size", "write_quorum", "near"),
    [(0, 5, 2, {1, 4}), (2, 5, 3, {0, 1, 3, 4}), (0, 3, 3, {1, 2}), (1, 4, 1, set()), (0, 6, 3, {1, 2, 4, 5})],
)
def test_neighbours_are_those_that_share_a_write_set(place, size, write_quorum, near):
    assert _neighbours(place, size, write_quorum) == near


def test_a_place_is_filled_from_the_rack_that_its_neighbours_have_least():
    topology = racks(a1="A", a2="A", b1="B", b2="B", c1="C")
    aware = Placement("rack_aware")
    fill = aware._fill_in_order
    # In the order given: a1, then another rack than its neighbours'.
    assert fill([None] * 3, ["a1", "a2", "b1", "c1"], {}, topology, 3) == ("a1", "b1", "c1")
    assert fill([None] * 4, ["a1", "a2", "b1", "b2"], {}, topology, 2) == ("a1", "b1", "a2", "b2")
    # Only those count that share a write set with it.
    assert fill([None] * 4, ["a1", "b1", "a2", "c1"], {}, topology, 2) == ("a1", "b1", "a2", "c1")
    assert fill([None] * 4, ["a1", "b1", "a2", "c1"], {}, topology, 3) == ("a1", "b1", "c1", "a2")
    # Of two racks that are there already, the one that is there less often.
    assert fill(["a1", "b1", "b2", None], ["b3", "a2"], {}, racks(a1="A", a2="A", b1="B", b2="B", b3="B"), 4)[3] == "a2"
    # Who is avoided comes last, whatever its rack.
    assert fill([None] * 2, ["a1", "b1", "a2"], {"b1": "why"}, topology, 2) == ("a1", "a2")
    assert Placement()._fill_in_order([None] * 2, ["a1", "a2", "b1"], {}, topology, 2) == ("a1", "a2")
    assert Placement()._fill_in_order([None] * 2, ["a1"], {}, topology, 2) is None


@pytest.mark.parametrize(
    ("ensemble", "racks_min", "write_quorum", "enough"),
    [
        ("a1 a2 b1", 2, 2, False),  # a1 and a2 share a write set
        ("a1 b1 a2", 2, 2, False),  # a2 and a1 do, around the end
        ("a1 b1 a2 b2", 2, 2, True),
        ("a1 b1 c1", 3, 2, True),  # two copies lie on two racks at most
        ("a1 a2 b1", 2, 3, True),
        ("a1 a2", 1, 2, True),
        ("a1 gone", 2, 2, True),  # of whose rack nothing is known
        ("gone lost", 2, 2, False),
    ],
)
def test_each_write_set_lies_on_as_many_racks_as_are_wanted(ensemble, racks_min, write_quorum, enough):
    topology = racks(a1="A", a2="A", b1="B", b2="B", c1="C")
    aware = Placement("rack_aware", racks_min)
    assert aware._on_enough_racks(tuple(ensemble.split()), topology, write_quorum) is enough
    assert Placement("random", racks_min)._on_enough_racks(tuple(ensemble.split()), topology, write_quorum)


def test_a_replacement_clashes_with_nobody_who_stays_and_may_with_who_goes():
    topology = hosts(b1="h1", b2="h2", b3="h2", b4="h1")
    one = Placement("one_per_host")
    assert one.choose_replacements(topology, ("b1", "b2"), ["b2"], 2, Fixed()) == ("b3",)
    assert one.choose_replacements(topology, ("b1", "b2"), ["b1"], 2, Fixed()) == ("b4",)
    assert set(one.choose_replacements(topology, ("b1", "b2"), ["b1", "b2"], 2, Fixed())) == {"b3", "b4"}
    # Of one that is not registered nothing is known that could clash.
    assert one.choose_replacements(topology, ("gone", "b1"), ["b1"], 2, Fixed())[0] in ("b2", "b3", "b4")
    with pytest.raises(NotEnoughBookiesError) as raised:
        one.choose_replacements(hosts(b1="h1", b4="h1"), ("b1", "b9"), ["b9"], 2, Fixed())
    assert "b4 shares host h1 with b1" in str(raised.value)


def test_members_in_the_way_are_those_behind_the_first_on_each_host_or_any_on_too_few_racks():
    topology = hosts(b1="h1", b2="h2", b3="h1", b4="h2")
    assert list(Placement("one_per_host")._in_the_way(("b1", "b2", "b3", "b4"), topology, 2)) == [("b3", "b4")]
    assert list(Placement("one_per_host")._in_the_way(("b1", "b2"), topology, 2)) == []
    topology = racks(a1="A", a2="A", b1="B")
    aware = Placement("rack_aware", 2)
    assert list(aware._in_the_way(("a1", "a2"), topology, 2)) == [("a1",), ("a2",)]
    assert list(aware._in_the_way(("a1", "b1"), topology, 2)) == []
    asked = []
    aware.choose_replacements = lambda topology, ensemble, members, quorum, random: asked.append((members, quorum))
    assert aware.misplaced(topology, ("a1", "a2"), 2, Fixed()) == ("a1",) and asked == [(("a1",), 2)]


def test_an_ensemble_is_as_large_as_there_are_bookies_down_to_what_is_needed():
    topology = racks(a="A", b="B", c="C")
    for size_min, chosen in ((2, 3), (3, 3)):
        assert len(Placement().choose_ensemble(topology, 4, 2, Fixed(), size_min)) == chosen
    assert len(Placement().choose_ensemble(topology, 2, 2, Fixed(), 1)) == 2
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 4 needs 4"):
        Placement().choose_ensemble(topology, 4, 2, Fixed())
    quorums = []
    placement = Placement()
    placement._fill = lambda ring, usable, topology, quorum, random: quorums.append((len(ring), quorum)) or ("a",)
    assert placement.choose_ensemble(topology, 4, 2, Fixed()) == ("a",) and quorums == [(4, 2)]


def test_without_quarantine_are_those_that_are_sound_and_the_ensemble():
    topology = avoiding(racks(a="A", b="B", c="C"), "a", "b")
    assert set(topology.without_quarantined(("a",)).bookies) == {"a", "c"}
    assert topology.without_quarantined(()).quarantined == topology.quarantined


def test_bookies_come_in_the_order_of_their_weights_where_chance_is_equal():
    assert _shuffled(["a", "b", "c"], {"a": 1, "b": 100, "c": 10}, Fixed()) == ["b", "c", "a"]
    # One that is not known has the average of 40: between 100 and 10.
    assert _shuffled(["a", "b", "c", "d"], {"a": 10, "b": 100, "c": 10}, Fixed())[:2] == ["b", "d"]
    assert _shuffled(["a", "b"], {}, Fixed()) == ["a", "b"]
    assert _shuffled(["a", "b"], {"a": 0, "b": 1}, Fixed()) == ["a", "b"], "what is full counts as one byte"


def test_what_is_told_of_too_few_bookies_has_each_with_its_rack():
    told = Placement("rack_aware", 2)._told(["a1", "a2"], "; b1 is read-only", racks(a1="A", a2="A", b1="B"), "none")
    assert told == "2 (a1 on rack 'A', a2 on rack 'A'; b1 is read-only), not enough on at least 2 racks"
    assert Placement("rack_aware", 1)._told([], "", racks(), "none") == "0 (none)"
    assert Placement()._told(["a"], "", avoiding(racks(a="A"), "a"), "none") == "1 (a (why))"
