"""The cluster's placement rule in the metadata store (``protocol.ledger.placement``).

Law: all clients, autorecovery, changes and audits of a cluster use this one rule. Without a record it is ``rack_aware``.
Record, as JSON::

    placement/cluster    {"name": "rack_aware", "racks_min": 2}
"""

from __future__ import annotations

from functools import partial

import msgspec

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.placement import PlacementRule
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct, unreadable
from bookspark.store.metadata.records.versioned import compare_and_set
from bookspark.store.metadata.store import MetadataStore

KIND, NAME = "placement", "cluster"
_WHAT = "the cluster's placement rule"


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    racks_min: int = 1


learn(_Document)


def read_placement(store: MetadataStore) -> PlacementRule:
    """Raises MetadataStoreError, and UnreadableRecordError."""
    found = store.read_record(KIND, NAME)
    if found is None:
        return PlacementRule()
    document = read_struct(found.value, _Document, _WHAT)
    try:
        return PlacementRule(document.name, document.racks_min)
    except ConfigurationError as error:
        raise unreadable(_WHAT, found.value, error) from error


def write_placement(store: MetadataStore, rule: PlacementRule) -> None:
    """Raises MetadataStoreError."""
    document = proven_struct(_Document(rule.name, rule.racks_min), _WHAT)
    compare_and_set(
        _WHAT, partial(store.read_record, KIND, NAME), lambda _: document, partial(store.write_record, KIND, NAME)
    )
