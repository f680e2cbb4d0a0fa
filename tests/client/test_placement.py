"""Which bookies make an ensemble, and what the error says if there are too few."""

from __future__ import annotations

from random import Random

import pytest

from bookspark.client.placement import choose_ensemble, choose_replacements
from bookspark.metadata.store import BookieRegistration
from bookspark.protocol.errors import NotEnoughBookiesError

SEEDS = range(50)


def registered(*names, read_only=()):
    return {name: BookieRegistration(name, "host:1", 1, read_only=name in read_only) for name in names}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_ensemble_has_distinct_writable_bookies(seed):
    candidates = registered("b1", "b2", "b3", "b4", "b5", read_only=("b2",))
    chosen = choose_ensemble(candidates, 3, Random(seed))
    assert len(set(chosen)) == 3
    assert "b2" not in chosen


def test_every_bookie_gets_its_share():
    candidates = registered("b1", "b2", "b3", "b4")
    chosen = [name for seed in SEEDS for name in choose_ensemble(candidates, 2, Random(seed))]
    assert all(chosen.count(name) > 10 for name in candidates)


def test_too_few_bookies_are_named_with_the_reasons():
    with pytest.raises(NotEnoughBookiesError, match=r"there are 1 .*b1; b2 is read-only"):
        choose_ensemble(registered("b1", "b2", read_only=("b2",)), 2, Random(0))
    with pytest.raises(NotEnoughBookiesError, match="none is registered"):
        choose_ensemble({}, 1, Random(0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replacement_comes_from_outside_and_from_quarantine_last(seed):
    candidates = registered("b1", "b2", "b3", "b4", "b5", "b6")
    ensemble = ("b1", "b2", "b3")
    assert choose_replacements(candidates, ensemble, ["b2"], ["b4", "b6"], Random(seed)) == ("b5",)
    assert choose_replacements(candidates, ensemble, ["b1", "b2"], ["b4", "b6"], Random(seed))[0] == "b5"
    assert len(set(choose_replacements(candidates, ensemble, ["b1", "b2", "b3"], ["b4", "b6"], Random(seed)))) == 3


def test_no_replacement_names_each_candidate():
    with pytest.raises(NotEnoughBookiesError, match=r"b2 failed .*b1 is in the ensemble already.*b4 is read-only"):
        choose_replacements(
            registered("b1", "b2", "b3", "b4", read_only=("b4",)), ("b1", "b2", "b3"), ["b2"], [], Random(0)
        )
