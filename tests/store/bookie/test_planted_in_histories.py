"""The histories detect planted faults, each of which breaks one of their laws."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision, FenceNoted, LastAddConfirmedNoted
from bookspark.protocol.bookie.control_copies import CopiesTell
from bookspark.protocol.ledger.responses import FENCED, Positive
from tests.store.bookie.histories import failure_of, stepped
from tests.store.bookie.stories import drawn_story

SEEDS = range(400)
LEDGER = "bookspark.protocol.bookie.bookie_ledger.BookieLedger"
_replay, _admit_add, _fence = BookieLedger.replay, BookieLedger.admit_add, BookieLedger.fence


def forgetting(kind):
    return lambda ledger, record: None if isinstance(record, kind) else _replay(ledger, record)


def one_too_high(ledger, record):
    higher = isinstance(record, LastAddConfirmedNoted)
    _replay(ledger, record._replace(last_add_confirmed=record.last_add_confirmed + 1) if higher else record)


def to_all(ledger, key, recovery):
    """Admit every add with the right password, fenced or not."""
    return _admit_add(ledger, key, True)


def to_nobody_once_fenced(ledger, key, recovery):
    return Decision(FENCED) if ledger.fenced else _admit_add(ledger, key, recovery)


FAULTS = {
    "nobody asks for the password": (
        f"{LEDGER}.admit_add", lambda ledger, key, recovery: _admit_add(ledger, ledger.master_key or key, recovery),
        "control", "granted: a stranger's add"),
    "fences are made by whoever asks": (
        f"{LEDGER}.fence", lambda ledger, key: _fence(ledger, ledger.master_key or key),
        "control", "granted: a stranger's fence"),
    "a fence that nobody asked for": (f"{LEDGER}.admit_add", lambda *given: Decision(FENCED), "none", "told of a fence"),
    "a fence that lets writers pass": (f"{LEDGER}.admit_add", to_all, "none", "fenced, and its writer may add"),
    "a fence that stops recovery": (f"{LEDGER}.admit_add", to_nobody_once_fenced, "none", "a fence that stops who recovers"),
    "a fence that no boot finds": (f"{LEDGER}.replay", forgetting(FenceNoted), "none", "forgotten: the fence"),
    "metadata that says yes to every writer": (
        "tests.store.bookie.judged.answer_unsure", lambda *given: Positive(), "apart", "fenced, and its writer may add"),
    "an LAC that no boot finds": (
        f"{LEDGER}.replay", forgetting(LastAddConfirmedNoted), "control", "forgotten: the explicit LAC"),
    "an LAC that grows with each boot": (f"{LEDGER}.replay", one_too_high, "control", "an LAC of N that nobody told"),
    "a sparse read that passes over what is lost": (
        "bookspark.store.bookie.holdings.reads.absence_proven",
        lambda ledger, first, last, **options: last, "lie", "were passed over"),
    "a sparse read that tells of more than was asked": (
        "bookspark.store.bookie.holdings.reads.absence_proven",
        lambda ledger, first, last, **options: last + 1, "none", "asked up to"),
    "a collection that believes the listing alone": (
        "bookspark.store.bookie.space.garbage_collection.collectable",
        lambda suspected, records: tuple(suspected), "none", "denied"),
    "a collection that believes the records alone": (
        "bookspark.store.bookie.space.garbage_collection.suspects",
        lambda held, listing: tuple(sorted(set(held))), "none", "denied"),
    "ids that are given out again": (
        "tests.store.bookie.rebooted.keep_lost_records", lambda storage, store: None, "none", "given out again"),
    "control logs that are taken as they are": (
        "bookspark.store.bookie.holdings.boot.judge_copies", lambda copies: CopiesTell.TOO_LITTLE, "control",
        "no control log was whole"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_histories_detect_each_planted_fault(monkeypatch, fault):
    what, wrong, trouble, found = FAULTS[fault]
    monkeypatch.setattr(what, wrong)
    with stepped():
        failures = (failure_of(drawn_story(trouble, seed)) for seed in SEEDS)
        assert any(found in failure for failure in failures)
