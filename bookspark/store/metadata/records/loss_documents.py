"""An accepted loss (``protocol.ledger.accepted_loss``) as a part of a ledger's record."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from bookspark.protocol.ledger.accepted_loss import MILLISECONDS_MAX, AcceptedLoss, Loss, LossKind

_Last = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)]
"""Since 1970, up to the year 9999."""


class _LossDocument(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    kind: LossKind
    first_entry_id: _Last
    last_entry_id: _Last
    bookies: tuple[str, ...]


class AcceptedLossDocument(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    accepted_by: str
    at: Milliseconds
    named_bookies: tuple[str, ...]
    losses: tuple[_LossDocument, ...]
    not_known: tuple[str, ...]


def loss_document(loss: AcceptedLoss) -> AcceptedLossDocument:
    losses = tuple(_LossDocument(*one) for one in loss.losses)
    return AcceptedLossDocument(loss.by, loss.at_ms, loss.named, losses, loss.not_known)


def accepted_loss(found: AcceptedLossDocument) -> AcceptedLoss:
    losses = tuple(Loss(one.kind, one.first_entry_id, one.last_entry_id, one.bookies) for one in found.losses)
    return AcceptedLoss(found.accepted_by, found.at, found.named_bookies, losses, found.not_known)
