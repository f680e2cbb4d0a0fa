"""Every Arrow reader opens the logs of a live bookie: one that grows, sealed ones, rewritten ones, one recovered after a kill."""

from __future__ import annotations

import pytest

from tests.arrow_readers import LIVES, READERS, Logs, payload, written_logs

COLUMNS = ["ledger_id", "entry_id", "last_add_confirmed", "length", "payload", "digest"]


@pytest.fixture(scope="module")
def logs(new_chroot, tmp_path_factory) -> dict[str, Logs]:
    return written_logs(tmp_path_factory.mktemp("arrow"), new_chroot())


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("reader", READERS)
def test_reader_opens_the_logs_and_gives_the_columns_of_each_entry(logs, reader, life):
    ledger_id, entries, paths = logs[life]
    rows, length = {}, 0
    for path in paths:
        table = READERS[reader](path)
        assert table.column_names == COLUMNS
        rows.update({row["entry_id"]: row for row in table.to_pylist() if row["ledger_id"] == ledger_id})
    assert sorted(rows) == list(range(entries))
    for entry_id in range(entries):
        length += len(payload(entry_id))
        row = rows[entry_id]
        assert (row["payload"], row["length"]) == (payload(entry_id), length)
        assert len(row["digest"]) == 4 and -1 <= row["last_add_confirmed"] < entry_id
