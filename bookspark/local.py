"""A cluster on this host without Spark: ZooKeeper and bookie processes, for tests and development.

Law: everything in it is real (processes, sockets, disks, ZooKeeper), and nothing outlives it. The cluster stops all that it
started; if its process is killed, ZooKeeper ends at once, and the bookies with their lease. A dead bookie is *not* restarted:
like every other fault, that is the test's business. The cluster belongs to the process that started it: a forked child that
leaves the ``with`` statement stops and removes nothing::

    with LocalCluster(bookies=3) as cluster:
        ledger = cluster.bookkeeper().create_ledger()
        cluster.bookies[0].kill()
        ledger.append(b"two of three bookies have it")
        cluster.bookies[0].start()

Bookie k uses ``<directory>/bookie-<k>``. A cluster made again in the same directory is the same cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
from msgspec import Meta

from bookspark.errors import BookieError
from bookspark.servers.daemon.launch import START_SECONDS, STOP_SECONDS, Bookie, adopt_or_start
from bookspark.servers.daemon.lease_server import Status
from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
from bookspark.store.autorecovery.child import AutorecoveryProcess
from bookspark.store.bookie.bookie_config import BookieConfig, bookie_config
from bookspark.store.bookie.offline.power_loss import lose_unsynced
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from bookspark.support.arguments import WaitSeconds, check_names, checks_arguments, checks_methods

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

BookieCount = Annotated[int, Meta(ge=0, le=1000)]
LEASE_SECONDS = 10.0
"""How long bookies outlive a killed process of their cluster."""
_SUSPEND_SECONDS_MAX = 10.0
_HOLDER = "a local cluster"


@checks_methods
class LocalBookie:
    """One bookie of a LocalCluster. It stays the same over all starts of its process."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._bookie: Bookie | None = None
        self._status: Status | None = None
        self._pid = os.getpid()

    @property
    def bookie_id(self) -> str:
        """The bookie's id, the same after every start. After ``wipe`` it is a new bookie with a new id, unless
        ``stamp_missing_cookies`` is set. Raises BookieError if it was never started."""
        return self._known().bookie_id

    @property
    def address(self) -> str:
        """``host:port`` where it serves, or served last. Raises BookieError if it was never started."""
        return self._known().address

    @property
    def pid(self) -> int | None:
        """Process id; None while the bookie does not run."""
        return self._bookie.process.pid if self._bookie is not None and self._bookie.alive else None

    @property
    def directories(self) -> tuple[str, ...]:
        return self._config.directories

    def start(self, timeout: WaitSeconds = START_SECONDS) -> None:
        """Start it, and return once it serves. Does nothing if it runs.

        Raises BookieError, with its last words, if it ends or does not serve within ``timeout`` seconds.
        """
        self._check_process("start")
        if self.pid is not None:
            return
        config = self._config
        if config.stamp_missing_cookies and not config.bookie_id and self._status is not None:
            config = msgspec.structs.replace(config, bookie_id=self._status.bookie_id)
        bookie = adopt_or_start(config, _HOLDER, timeout)
        try:
            self._status = bookie.wait_serving(timeout)
        except BaseException:
            bookie.kill()
            raise
        self._bookie = bookie

    def stop(self, timeout: WaitSeconds = STOP_SECONDS) -> None:
        """Stop it cleanly. Does nothing if it does not run.

        Raises BookieError if it did not end within ``timeout`` seconds and was killed.
        """
        self._check_process("stop")
        if self.pid is not None and self._bookie is not None:
            self.resume()
            if not self._bookie.stop(timeout):
                raise BookieError(f"{self.bookie_id} did not stop cleanly within {timeout:g} s and was killed")

    def kill(self) -> None:
        """Kill its process (SIGKILL), and return once the process is gone. Does nothing if it does not run."""
        self._check_process("kill")
        if self._bookie is not None:
            self._bookie.kill()

    def suspend(self) -> None:
        """Halt its process (SIGSTOP), and return once it is halted. It answers no request, and its connections stay open.

        Raises BookieError if it does not run, or is not halted within 10 s.
        """
        bookie = self._running()
        bookie.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _SUSPEND_SECONDS_MAX
        while bookie.alive and not bookie.process.suspended:
            if time.monotonic() > deadline:
                raise BookieError(f"{self.bookie_id} is not suspended after {_SUSPEND_SECONDS_MAX:g} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Continue its process (SIGCONT), after ``suspend``. Raises BookieError if it does not run."""
        self._running().send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Empty its directories, as after a replacement of every disk. Raises BookieError if it runs."""
        self._must_not_run("wipe")
        for directory in self.directories:
            for path in Path(directory).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def lose_unsynced(self) -> None:
        """After ``kill``, cut its logs back to the synced bytes, as a power failure may. Raises BookieError if it runs."""
        self._must_not_run("lose_unsynced")
        for directory in self.directories:
            lose_unsynced(directory)

    def _running(self) -> Bookie:
        if self._bookie is None or self.pid is None:
            raise BookieError(f"the bookie in {self.directories[0]} does not run: start() it first")
        return self._bookie

    def _check_process(self, verb: str) -> None:
        """Lease and child process belong to the process that started the bookie."""
        if os.getpid() != self._pid:
            raise BookieError(f"process {self._pid} looks after the bookie in {self.directories[0]}: {verb}() it there")

    def _must_not_run(self, verb: str) -> None:
        self._check_process(verb)
        if self.pid is not None:
            raise BookieError(f"{self.bookie_id} runs: kill() or stop() it before {verb}()")

    def _known(self) -> Status:
        if self._status is None:
            raise BookieError(f"the bookie in {self.directories[0]} was never started: start() it first")
        return self._status


@checks_arguments
class LocalCluster:
    """Bookies and a ZooKeeper on this host. It starts and stops with its ``with`` statement, or with ``start`` and ``stop``.

    ``bookies`` has the ``LocalBookie`` of each bookie, ``autorecovery`` the autorecovery processes.
    """

    def __init__(
        self,
        bookies: BookieCount | Sequence[Mapping[str, Any]] = 3,
        directory: str | Path | None = None,
        zookeeper: ConnectionString | None = None,
        autorecovery: bool | Mapping[str, Any] = False,
        **bookie_options: Any,
    ) -> None:
        """Prepare a cluster; it starts with ``start``.

        Arguments:
            bookies: number of bookies; or a list with the options of each bookie, on top of ``bookie_options``.
            directory: folder of the cluster's files; None: a temporary directory, removed at the end.
            zookeeper: the connection string of a running ZooKeeper; None: the cluster starts its own.
            autorecovery: True: also run an autorecovery process. It may be a mapping: the arguments of ``add_autorecovery``.
            bookie_options: fields of ``bookspark.store.bookie.bookie_config.BookieConfig`` for all bookies, such as
                ``journal_write_data=False``.

        Raises:
            ConfigurationError: an option is unknown, or has an invalid value.
        """
        names = {"bookies", "directory", "zookeeper", "autorecovery", *BookieConfig.__struct_fields__} - {"directories"}
        check_names(bookie_options, names, "LocalCluster option")
        if isinstance(bookies, int):
            bookies = [{}] * bookies
        self.bookies: list[LocalBookie] = []
        self.autorecovery: list[AutorecoveryProcess] = []
        self._count = len(bookies)
        self._own_options: dict[int, Mapping[str, Any]] = dict(enumerate(bookies))
        self._given_directory = directory
        self._given_zookeeper = zookeeper
        self._given_autorecovery = {} if autorecovery is True else autorecovery
        if self._given_autorecovery:
            autorecovery_config(**{name: v for name, v in self._given_autorecovery.items() if name != "client"})
        self._options = {"lease_seconds": LEASE_SECONDS, **bookie_options}
        # Made only for its checks: a wrong option is refused now, not at the start.
        bookie_config(directories=["/"], zookeeper="", **self._options)
        self._stack = contextlib.ExitStack()
        self._pid = os.getpid()
        self._zookeeper = ""
        self._own_zookeeper: EmbeddedZooKeeper | None = None
        self._directory = Path()

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connection string, for ``BookKeeper``. Raises BookieError if the cluster is not started."""
        if not self._zookeeper:
            raise BookieError("the cluster is not started: use it in a with statement, or call start()")
        return self._zookeeper

    def start(self) -> None:
        """Start everything, and return once every bookie serves. A failed start leaves no process running, and raises
        BookieError with the last words of the failed process, or ConfigurationError for a directory that is not this user's
        alone."""
        self._pid = os.getpid()
        with contextlib.ExitStack() as stack:
            if self._given_directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="bookspark-"))
                stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
            else:
                self._directory = Path(self._given_directory).absolute()
            if self._given_zookeeper is None:
                self._own_zookeeper = stack.enter_context(EmbeddedZooKeeper(self._directory / "zookeeper"))
                self._zookeeper = self._own_zookeeper.connection_string
            else:
                self._zookeeper = self._given_zookeeper
            begin_cluster(self._zookeeper)
            stack.callback(self._stop_bookies)
            self.bookies = [self._new_bookie(k) for k in range(self._count)]
            _all_at_once(bookie.start for bookie in self.bookies)
            self.autorecovery = []
            stack.callback(self._stop_autorecovery)
            if self._given_autorecovery is not False:
                self.add_autorecovery(**self._given_autorecovery)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Close the clients made by ``bookkeeper``, stop every process and ZooKeeper, and remove the temporary directory. Does
        nothing in a forked process.

        Raises BookieError if a process did not stop cleanly and was killed.
        """
        if os.getpid() != self._pid:
            return
        try:
            self._stack.close()
        finally:
            self._zookeeper = ""

    def ended(self) -> dict[str, str]:
        """The processes of the cluster that have ended, each with the remedy."""
        ended = {}
        if self._own_zookeeper is not None and self._own_zookeeper.pid is None:
            again = "and make a new one: its directory is temporary"
            if self._given_directory is not None:
                place = quote(str(self._directory))
                again = f"and start it again with its data: bookspark local --bookies {self._count} --directory {place}"
            ended["ZooKeeper"] = f"nothing can be made or closed; end this cluster, {again}"
        for bookie in self.bookies:
            if bookie.pid is None:
                home = bookie.directories[0]
                ended[bookie.bookie_id] = (
                    f"start it again: bookspark bookie run --directory {quote(home)}; its log: {home}/bookie.log"
                )
        for process in self.autorecovery:
            if process.pid is None:
                ended["autorecovery"] = "start it again: bookspark autorecovery run"
        return ended

    def add_bookie(self, **bookie_options: Any) -> LocalBookie:
        """Add a bookie, and return it once it serves.

        ``bookie_options`` are fields of ``BookieConfig`` for this bookie, on top of the cluster's. Raises BookieError if it
        does not start, and ConfigurationError for an invalid option.
        """
        self._own_options[len(self.bookies)] = bookie_options
        bookie = self._new_bookie(len(self.bookies))
        bookie.start()
        self.bookies.append(bookie)
        return bookie

    def add_autorecovery(self, client: Mapping[str, Any] | None = None, **options: Any) -> AutorecoveryProcess:
        """Add an autorecovery process, and return it once it works.

        Arguments:
            client: fields of ``ClientConfig``, for the process's own client.
            options: fields of ``bookspark.store.autorecovery.autorecovery_config.AutorecoveryConfig``.

        Raises BookieError if it does not start, and ConfigurationError for an invalid option.
        """
        log = self._directory / f"autorecovery-{len(self.autorecovery)}.log"
        process = AutorecoveryProcess(self.zookeeper, log, client or {}, options)
        process.start()
        self.autorecovery.append(process)
        return process

    def bookkeeper(self, **options: Any) -> BookKeeper:
        """A client of the cluster. It is closed with the cluster, unless it is closed before.

        ``options`` are those of ``BookKeeper``. Raises ConfigurationError for an invalid option, and BookieError if the
        cluster is not started.
        """
        # Imported only here: a cluster without a client is useful too.
        from bookspark.store.client import BookKeeper

        client = BookKeeper(self.zookeeper, **options)
        self._stack.callback(client.close)
        return client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _new_bookie(self, k: int) -> LocalBookie:
        return LocalBookie(self._bookie_config(k))

    def _bookie_config(self, k: int) -> BookieConfig:
        home = str(self._directory / f"bookie-{k}")
        return bookie_config(directories=[home], zookeeper=self.zookeeper, **{**self._options, **self._own_options[k]})

    def _stop_autorecovery(self) -> None:
        _all_at_once(process.stop for process in self.autorecovery)

    def _stop_bookies(self) -> None:
        _all_at_once(bookie.stop for bookie in self.bookies)


def _all_at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make every call, each on a thread of its own; raise the first error after all have returned. An ending interpreter
    starts no threads: then the calls run here."""
    errors: list[BaseException] = []

    def attempt(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = []
    for call in calls:
        thread = threading.Thread(target=attempt, args=(call,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            attempt(call)
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
