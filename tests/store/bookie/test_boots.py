"""Random schedules of a bookie's boots without files: no law breaks, and each planted fault is detected."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.bookie_boot import marks_together
from bookspark.protocol.bookie.bookie_ledger import (
    LOST_AT_BOOT,
    NO_SUCH_ENTRY,
    BookieLedger,
    Decision,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
)
from bookspark.protocol.bookie.control_copies import CopiesTell
from bookspark.protocol.ledger.responses import FENCED, Positive
from tests.store.bookie.boots import failure_of

SEEDS = range(1500)
_replay, _admit_add = BookieLedger.replay, BookieLedger.admit_add


def broken_by(seeds=range(6000)):
    return next((failure for seed in seeds if (failure := failure_of(seed))), "")


def test_bookie_denies_no_entry_and_forgets_no_fence_in_any_boot_schedule():
    assert broken_by(SEEDS) == ""


def forgetting(kind):
    return lambda ledger, record: None if isinstance(record, kind) else _replay(ledger, record)


def one_too_high(ledger, record):
    higher = isinstance(record, LastAddConfirmedNoted)
    _replay(ledger, record._replace(last_add_confirmed=record.last_add_confirmed + 1) if higher else record)


def to_nobody_once_fenced(ledger, key, recovery):
    return Decision(FENCED) if ledger.fenced else _admit_add(ledger, key, recovery)


LEDGER = "bookspark.protocol.bookie.bookie_ledger.BookieLedger"
FAULTS = {
    "a bookie that denies what it can not find": (
        "tests.store.bookie.boot_laws.answer_absent", lambda *given, **options: NO_SUCH_ENTRY, "denied"),
    "a fence that no boot finds": (f"{LEDGER}.replay", forgetting(FenceNoted), "forgotten: the fence"),
    "metadata that says yes to every writer": (
        "tests.store.bookie.boot_laws.answer_unsure", lambda *given: Positive(), "forgotten: the fence"),
    "a fence that stops recovery": (
        f"{LEDGER}.admit_add", to_nobody_once_fenced, "fence"),
    "an LAC that no boot finds": (f"{LEDGER}.replay", forgetting(LastAddConfirmedNoted), "forgotten: an LAC"),
    "an LAC that grows with each boot": (f"{LEDGER}.replay", one_too_high, "an LAC that nobody told"),
    "nobody asks for the password": (
        f"{LEDGER}.admit_add", lambda ledger, key, recovery: _admit_add(ledger, ledger.master_key or key, recovery),
        "granted to a stranger"),
    "reads that nobody needs a password for": ("tests.store.bookie.boots.may_read", lambda *given: True, "granted to a stranger"),
    "reads for nobody": ("tests.store.bookie.boots.may_read", lambda *given: False, "no reader of"),
    "a fence that nobody asked for": (f"{LEDGER}.admit_add", lambda *given: Decision(FENCED), "told of a fence"),
    "a limbo that nobody is told of": (
        "tests.store.bookie.boot_laws.answer_absent", lambda *given, **options: LOST_AT_BOOT, "in limbo, and says"),
    "an LAC of a ledger in limbo": (
        "tests.store.bookie.boot_laws.answer_last_add_confirmed", lambda ledger: Positive(), "answers: the LAC of"),
    "metadata that says no to every writer": (
        "tests.store.bookie.boot_laws.answer_unsure", lambda *given: FENCED, "the writer of"),
    "a doubt that no boot finds": (f"{LEDGER}.replay", forgetting(FenceUnsureNoted), "forgotten: the fence"),
    "a healing that holds for all": (
        "bookspark.store.bookie.holdings.boot.marks_together", lambda told: marks_together(told[:1]), "denied: what"),
    "copies that always tell all": ("tests.store.bookie.boots.judge_copies", lambda copies: CopiesTell.ALL, "boots:"),
    "whole copies that always tell all": (
        "bookspark.protocol.bookie.control_copies._stands_for", lambda copy, damaged: True, "lost, and told to be whole"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_detected(monkeypatch, fault):
    what, wrong, found = FAULTS[fault]
    monkeypatch.setattr(what, wrong)
    assert found in broken_by()
