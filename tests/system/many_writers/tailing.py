"""A reader that tails a log to its end; its arguments are FOLDER, ZOOKEEPER, LOG, NAME and LIFE.

A name that begins with ``share`` is a reader of the group ``share``, whose readers share the lanes.

It continues at the saved position of its group, and saves after every few reads; so a row may come again in its next life, and
none is skipped. Its journal has its first position and each row. Once there is a file ``FOLDER/all-is-written`` it ends at the
end of the log. Exit status: 0 at the end, ENDED after an error of the cluster.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

from bookspark.errors import BookKeeperError
from bookspark.logs import open_log
from bookspark.store.client import BookKeeper
from tests.system.many_writers.journal import Journal
from tests.system.many_writers.producing import CLIENT, ENDED

_SAVE_EACH = 0.3
_WAIT_SECONDS = 1.0


def main(folder: str, zookeeper: str, log: str, name: str, life: str) -> int:
    journal, random = Journal(Path(folder) / f"{name}.{life}.journal"), Random(life)
    all_is_written = Path(folder) / "all-is-written"
    try:
        with (
            BookKeeper(zookeeper, client_name=name, **CLIENT) as bookkeeper,
            open_log(bookkeeper, log).reader(group=name.split("-")[0], share=name.startswith("share")) as reader,
        ):
            journal.write("began", json.dumps(reader.offset, separators=(",", ":")))
            while True:
                was_written = all_is_written.exists()
                rows = reader.read(timeout=_WAIT_SECONDS)
                journal.write_all("row", [f"{row.lane} {row.position} {row.value.decode()}" for row in rows])
                if was_written and not rows:
                    return 0
                if random.random() < _SAVE_EACH:
                    reader.commit()
    except BookKeeperError as error:
        journal.write("ended", type(error).__name__)
        print(f"{type(error).__name__}: {error}", flush=True)
        return ENDED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
