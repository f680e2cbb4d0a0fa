"""Makes the screenshots of the manual: ``scripts/screenshots``.

All in them is real except the snapshots' writer: five bookies, a log with two readers of which one lags, ledgers with
changed ensembles, four snapshots, and finally a killed bookie.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bookspark.local import LocalCluster
from bookspark.logs import create_log, open_log
from bookspark.operations.console import WebConsole
from bookspark.operations.why.gathering import DEADLINES
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that, time_passes
from tests.operations.console import snapshots
from tests.operations.console.browser import BROWSER, DESKTOP, PHONE, Browser
from tests.operations.console.conftest import ask

_SECONDS_OF_PLOTS = 420.0
# The least and the greatest height of a page in a screenshot, in px.
_HEIGHT_MIN, _HEIGHT_MAX = 300, 1300


def main(folder: Path) -> None:
    """Write the screenshots into ``folder``."""
    if BROWSER is None:
        raise SystemExit("there is no Chromium on this machine: install it (Debian: apt install chromium)")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        Browser(Path(place)) as browser,
        _site(Path(place) / "snapshots") as (console, ledger_id, trouble),
    ):
        pages = {
            "overview": "",
            "ledger": f"ledger?id={ledger_id}",
            "log": "log?name=orders",
            "time": "time?at=2&since=1",
        }
        for name, where in pages.items():
            _take(browser, folder, name, console.url + where)
        _take(browser, folder, "phone", console.url, PHONE)
        trouble()
        await_that(lambda: "is down" in ask(console).text)
        _take(browser, folder, "trouble", console.url)
    small = shutil.which("pngquant")
    if small:
        for one in sorted(folder.glob("console-*.png")):
            subprocess.run([small, "--force", "--ext", ".png", "--speed", "1", "32", str(one)], check=True)
    size = sum(one.stat().st_size for one in folder.glob("console-*.png"))
    print(f"{folder}: {size:,} bytes")


def _take(browser: Browser, folder: Path, name: str, url: str, size: tuple[int, int] = DESKTOP) -> None:
    # A phone in dark and a desktop in light colours, so that both schemes are shown.
    page = browser.page(size, dark=size == PHONE, scale=1.0)
    page.show(url)
    page.wait("!document.getElementById('plots') || document.querySelector('.u-wrap')")
    height = page.js("Math.ceil(document.body.getBoundingClientRect().bottom)")
    (folder / f"console-{name}.png").write_bytes(page.picture(max(_HEIGHT_MIN, min(height, _HEIGHT_MAX))))
    page.close()


@contextmanager
def _site(path: Path) -> Iterator[tuple[WebConsole, int, Callable[[], None]]]:
    """A console, a ledger with several fragments, and a function that kills a bookie."""
    with LocalCluster(bookies=5, autorecovery=True, metrics_port=-1) as cluster, cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "orders")
        create_log(bookkeeper, "payments").producer("billing").close()
        ends = threading.Event()

        def write() -> None:
            with cluster.bookkeeper() as own, open_log(own, "orders").producer("billing") as producer:
                while not ends.wait(0.05):
                    producer.append_batch([b'{"order": 1, "total": "17.20"}'] * 20)

        def read() -> None:
            with cluster.bookkeeper() as own, open_log(own, "orders").reader(group="shipping") as reader:
                while not ends.is_set():
                    reader.read(1000, 1.0)
                    reader.commit()

        threads = [threading.Thread(target=one) for one in (write, read)]
        for one in threads:
            one.start()
        try:
            with (
                BookKeeper(cluster.zookeeper, **DEADLINES) as own,
                WebConsole(own, snapshots=str(path)) as console,
                log.reader(group="statistics") as slow,
            ):
                await_that(lambda: slow.read(50, 1.0))
                slow.commit()
                oldest = snapshots.take(bookkeeper, path)
                ledger_id = _changed_ledger(cluster, bookkeeper)
                snapshots.take(bookkeeper, path, oldest=oldest)
                for _ in range(3):
                    with bookkeeper.create_ledger(3, 3, 2) as ledger:
                        ledger.append_batch([b"x" * 1000] * 500)
                gone = bookkeeper.create_ledger(3, 3, 2)
                gone.close()
                other = cluster.bookies[4]
                other.stop()
                await_that(lambda: other.bookie_id not in bookkeeper.metadata.bookies())
                snapshots.take(bookkeeper, path, oldest=oldest)
                other.start()
                bookkeeper.delete_ledger(gone.ledger_id)
                snapshots.take(bookkeeper, path, oldest=oldest)
                # Requests over time give the plots their lines.
                for _ in range(int(_SECONDS_OF_PLOTS)):
                    ask(console)
                    time_passes(1.0)
                await_that(lambda: "There is nothing to do" in ask(console).text)
                yield console, ledger_id, cluster.bookies[0].kill
        finally:
            ends.set()
            for one in threads:
                one.join(60)


def _changed_ledger(cluster: LocalCluster, bookkeeper: BookKeeper) -> int:
    """A closed ledger whose ensemble changed twice."""
    ledger = bookkeeper.create_ledger(3, 3, 2)
    for _ in range(2):
        for _ in range(10):
            ledger.append_batch([b"x" * 1000] * 10)
        name = ledger.metadata.last_fragment.ensemble[0]
        bookie = next(one for one in cluster.bookies if one.bookie_id == name)
        bookie.kill()
        await_that(lambda name=name: ledger.append(b"x") >= 0 and name not in ledger.metadata.last_fragment.ensemble)
        bookie.start()
    ledger.append_batch([b"x" * 1000] * 10)
    ledger.close()
    return ledger.ledger_id


if __name__ == "__main__":
    main(Path(sys.argv[1]))
