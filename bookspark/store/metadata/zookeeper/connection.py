"""A ZooKeeper session in which every call has a deadline, with its figures for metrics.

Law: a call returns ZooKeeper's definite answer, or raises ``MetadataStoreError`` at its deadline. A call whose reply was lost
with the connection is sent again within the deadline. A definite *error* to a repeated write may come from its own first
attempt, so the caller then reads to learn the outcome. A node is changed or removed only in the cluster of ``mark``: one
transaction checks the mark and makes the change. A cluster made in the place of another restarts paths, ids and versions. A
forked child can't use a connection.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import ForceRetryError, KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.store.metadata.notifier import Owner
from bookspark.store.metadata.short_waits import patience_seconds
from bookspark.store.metadata.zookeeper.layout import Address
from bookspark.support.addresses import is_loopback, split_address
from bookspark.support.certificates import check_client_files, no_passphrase
from bookspark.support.extras import extra_needed
from bookspark.support.metrics.described import Figures
from bookspark.support.metrics.histogram import Histogram
from bookspark.support.private_files import read_secret
from bookspark.support.threads import Latch, Waiters, check_may_ask_store, mark_own_thread

log = logging.getLogger(__name__)


# -- Figures of a session: call durations and lost connections.


_LATELY = 16


class SessionFigures:
    """Call durations and lost connections of one session.

    Law: any thread may count, and a finalizer may count in the middle of a count, so the lock is reentrant. A call takes a
    thousand times as long as the lock.
    """

    def __init__(self, is_connected: Callable[[], bool]) -> None:
        self._is_connected = is_connected
        self._lock = threading.RLock()
        self._seconds = Histogram()
        self._lately: deque[tuple[float, float]] = deque(maxlen=_LATELY)
        self._failed = 0
        self._disconnected = 0

    def answered(self, seconds: float) -> None:
        with self._lock:
            self._seconds.observe(seconds)
            self._lately.append((time.monotonic() - seconds, seconds))

    def failed(self) -> None:
        """Count a call without an answer about the data in time."""
        with self._lock:
            self._failed += 1

    def since(self, began: float) -> list[float]:
        """Durations of the last calls that began at or after ``began``, a moment of ``time.monotonic``."""
        with self._lock:
            return [seconds for at, seconds in self._lately if at >= began]

    def disconnected(self) -> None:
        with self._lock:
            self._disconnected += 1

    def figures(self) -> Figures:
        return {
            "bookspark_zookeeper_connected": float(self._is_connected()),
            "bookspark_zookeeper_disconnections_total": self._disconnected,
            "bookspark_zookeeper_call_seconds": self._seconds.copy(),
            "bookspark_zookeeper_failed_calls_total": self._failed,
        }


# -- The connection.


_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
# Kazoo's warnings about connections are shown only where logging is set up.
_kazoo_log.addHandler(logging.NullHandler())
# Below this level kazoo logs master keys of ledgers, and the password of the auth_file.
_kazoo_log.setLevel(logging.INFO)

Result = TypeVar("Result")
DefiniteError = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
"""Answers about the data. All other errors are failures of the store."""
_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)
_ANY_VERSION = -1
_PAUSE_SECONDS = 0.02
_START_STEP_SECONDS = 1.0
_ATTEMPT_SECONDS = 1.0
"""Longest first attempt at a server if there are others."""
_SILENCE_SECONDS = 60.0
"""A server silent lately is tried last for so long."""
_SECONDS_MIN = 0.001
_EARLY_SECONDS = 0.05
"""A socket's wait may end this much before its time."""


class _Answer(AsyncResult):  # type: ignore[misc]
    """A kazoo result that is awaited without holding its lock: a signal handler may interrupt the wait, and wait for kazoo's
    thread, which needs the lock."""

    def __init__(self, handler: SequentialThreadingHandler) -> None:
        super().__init__(handler)
        self._waiters = Waiters()

    def set(self, value: Any = None) -> None:
        super().set(value)
        self._waiters.wake()

    def set_exception(self, exception: Exception) -> None:
        super().set_exception(exception)
        self._waiters.wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            self._waiters.wait(self.ready, timeout)
        return super().get(block=False)

    def wait(self, timeout: float | None = None) -> bool:
        return self._waiters.wait(self.ready, timeout)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, marked as ours: a finalizer in such a thread must not wait for that very thread. Their waits for the
    server end at ``silent_at``."""

    silent_at = math.inf
    """Moment from which the server counts as silent, unless it is heard before."""
    answer_seconds = 0.0
    """Seconds that each part of an answer may take; 0 while connecting, where ``silent_at`` is fixed."""

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        left = max(_SECONDS_MIN, self.silent_at - time.monotonic())
        return super().create_connection(*args, timeout=min(timeout, left), **kwargs)

    def select(self, reading: Any, writing: Any, failing: Any, timeout: float) -> Any:
        left = max(0.0, self.silent_at - time.monotonic())
        ready = super().select(reading, writing, failing, min(timeout, left))
        if left <= timeout and not any(ready):
            raise KazooTimeoutError("the server is silent")
        if self.answer_seconds and len(reading) == 1:
            # The next part of a long answer.
            self.silent_at = time.monotonic() + self.answer_seconds
        return ready

    def async_result(self) -> _Answer:
        return _Answer(self)

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        @wraps(func)
        def marked(*args: Any, **kwargs: Any) -> None:
            mark_own_thread("kazoo")
            func(*args, **kwargs)

        thread: threading.Thread = super().spawn(marked, *args, **kwargs)
        return thread


class _Servers(ConnectionHandler):  # type: ignore[misc]
    """Kazoo's connection, which leaves a silent server for another one in time.

    Law: of a session's time a third may pass until the server is asked for a sign of life, a third until it answers, and a
    third suffices for one attempt at each server. (Kazoo gives the first silent server the time of the whole session, and
    stays with a silent one as long as requests are sent to it.) A single server has two thirds for an answer. Each round of
    failed attempts doubles the length of the next, so that slow servers are reached at last.
    """

    _silences: ClassVar[dict[tuple[str, int], float]] = {}
    """Moment of the last silence by address, for all connections of the process."""

    def __init__(self, client: KazooClient) -> None:
        made = client._connection
        super().__init__(client, made.retry_sleeper, logger=made.logger, sasl_options=made.sasl_options)
        self._session_seconds: float = client._session_timeout / 1000.0
        self._servers = 1
        self._failed_rounds = 0

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        long_ago = time.monotonic() - _SILENCE_SECONDS
        return sorted(found, key=lambda each: max(long_ago, self._silences.get(each[1:], long_ago)))

    def _connect_loop(self, retry: KazooRetry) -> Any:
        servers = self._expand_client_hosts()
        self._servers = len(servers)
        seconds = self._attempt_seconds()
        for host, address, port in servers:
            if self.client._stopped.is_set():
                return STOP_CONNECTING
            self.handler.silent_at, self.handler.answer_seconds = time.monotonic() + seconds, 0.0
            if self._connect_attempt(host, address, port, retry) is STOP_CONNECTING:
                return STOP_CONNECTING
            if time.monotonic() > self.handler.silent_at - _EARLY_SECONDS:
                self._silences[address, port] = time.monotonic()
            if self.handler.answer_seconds:
                # The session was connected before. Its host names may have other addresses by now.
                self._failed_rounds = 0
                break
        else:
            self._failed_rounds += 1
        raise ForceRetryError("connecting again")

    def _attempt_seconds(self) -> float:
        if self._servers < 2:
            return self._session_seconds
        share = self._session_seconds / 3 / self._servers if self.client._session_id else _ATTEMPT_SECONDS
        return min(self._session_seconds, min(share, _ATTEMPT_SECONDS) * 2.0**self._failed_rounds)

    def _connect(self, host: str, address: str, port: int) -> tuple[int, int]:
        read_timeout, connect_timeout = super()._connect(host, address, port)
        # Kazoo's read timeout is two thirds of the session that the server grants, in milliseconds.
        self._session_seconds = read_timeout * 1.5 / 1000.0
        self._silences.pop((address, port), None)
        self.handler.silent_at = math.inf
        self.handler.answer_seconds = self._session_seconds / 3 * (1 if self._servers > 1 else 2)
        return read_timeout, connect_timeout

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        super()._submit(request, timeout, xid)
        if self.handler.answer_seconds:
            self._await_answer(self.handler.answer_seconds)

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except SessionClosedRequireSaslError as error:
            # So a server with sessionRequireClientSASLAuth rejects a password. Kazoo's thread would end with this error.
            raise AuthFailedError("the server requires SASL") from error

    def _send_ping(self, timeout: float) -> None:
        super()._send_ping(timeout)
        # ``silent_at`` alone judges the answer.
        self.ping_outstanding.clear()
        self._await_answer(self._session_seconds / 3)

    def _read_socket(self, timeout: float) -> Any:
        response = super()._read_socket(timeout)
        self.handler.silent_at = math.inf
        if self.client._pending:
            self._await_answer(self.handler.answer_seconds)
        return response

    def _await_answer(self, seconds: float) -> None:
        self.handler.silent_at = min(self.handler.silent_at, time.monotonic() + seconds)


class Connection:
    """A kazoo client with deadlines. ``connected`` is called, from kazoo's thread, at each (re)connection: it must not block."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_seconds: float,
        session_timeout_seconds: float,
        start_timeout_seconds: float,
        connected: Callable[[], None],
    ) -> None:
        self.address = address
        self.timeout_seconds = timeout_seconds
        self.mark = ""
        """Path of the node that every commit checks for; "" until it is known."""
        self._owner = Owner("connection to ZooKeeper")
        self._on_connected = connected
        self._connected = Latch()
        self._closed = Latch()
        self._begins_or_ends = threading.Lock()
        self.figures = SessionFigures(self._connected.is_set)
        access = address.access
        credentials, sasl = _credentials("auth_file", access.auth_file), _credentials("sasl_file", access.sasl_file)
        self.wants_acl = credentials is not None or sasl is not None
        """New nodes are for this connection's user alone."""
        for option, file in access._asdict().items():
            if file:
                _check_readable(option, file)
        if credentials is not None:
            _warn_of_clear_text(address)
        if access.tls_ca:
            check_client_files(access.tls_ca, access.tls_certificate, access.tls_key)
        self.client = KazooClient(
            hosts=address.servers,
            timeout=session_timeout_seconds,
            handler=_Handler(),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
            logger=_kazoo_log,
            auth_data=[] if credentials is None else [("digest", credentials)],
            default_acl=CREATOR_ALL_ACL if self.wants_acl else None,
            sasl_options=None if sasl is None else _sasl_options(sasl),
            use_ssl=bool(access.tls_ca),
            check_hostname=bool(access.tls_ca),
            ca=access.tls_ca or None,
            certfile=access.tls_certificate or None,
            keyfile=access.tls_key or access.tls_certificate or None,
            keyfile_password=no_passphrase,
        )
        self.client._connection = _Servers(self.client)
        self.client.add_listener(self._state_changed)
        # Each further server may cost two attempts.
        self._start(start_timeout_seconds + 2 * _ATTEMPT_SECONDS * address.servers.count(","))

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def session_id(self) -> int | None:
        """The owner of this session's ephemeral nodes; None without a session."""
        found: tuple[int, bytes] | None = self.client.client_id
        return None if found is None else found[0]

    def call(
        self,
        what: str,
        send: Callable[[], Any],
        settle: Callable[[Exception], Result] | None = None,
    ) -> Any:
        """The value of the kazoo result that ``send`` returns. Raises a definite error; after a lost reply ``settle`` gets it,
        and its value is returned. Raises MetadataStoreError."""
        outcomes, repeated = self._gather(what, lambda: [send()])
        return self._value(outcomes[0], repeated, settle)

    def read(self, what: str, path: str, send: Callable[[], Any]) -> Any:
        """``call`` after a sync: the answer shows every change confirmed to any client, whichever server answers."""
        outcomes, _ = self._gather(what, lambda: [self.client.sync_async(path), send()])
        return self._value(outcomes[1], False, None)

    def gather(self, what: str, send: Callable[[], Sequence[Any]]) -> list[Any]:
        """The outcomes of several requests, sent at once and answered in order: each a value or a definite error."""
        return self._gather(what, send)[0]

    def commit(
        self, what: str, build: Callable[[Any], None], settle: Callable[[Exception], None] | None = None
    ) -> None:
        """Run the transaction that ``build`` fills, if ``mark`` exists. Raises the definite error that stopped it. After a
        lost reply that error may be the transaction's own first attempt: then ``settle`` gets it, or, without ``settle``, the
        caller has to look."""

        def send() -> Any:
            transaction = self.client.transaction()
            if self.mark:
                transaction.check(self.mark, _ANY_VERSION)
            build(transaction)
            return transaction.commit_async()

        outcomes, repeated = self._gather(what, lambda: [send()])
        results = self._value(outcomes[0], False, None)
        if self.mark and isinstance(results[0], NoNodeError):
            raise MetadataStoreError(
                f"{what}: {self.mark} is gone from ZooKeeper, so this may be another cluster now, and nothing was changed; "
                "restore ZooKeeper's data, or stop the users of the earlier cluster"
            )
        for result in results:
            if isinstance(result, DefiniteError):
                self._value(result, repeated, settle)
                return
            if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
                raise self._refused(what, result)

    def close(self) -> None:
        """End the session. Without an answer it ends by itself a session timeout later."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._connected.set()
        if self._owner.here:
            self._stop_client(self.timeout_seconds)

    def _start(self, seconds: float) -> None:
        try:
            self.client.start_async()
            connected = self._connected.wait(seconds)
        except BaseException:
            self._give_up()
            raise
        if not connected:
            self._give_up()
            secured = " and the files of its options" if any(self.address.access) else ""
            raise MetadataStoreError(
                f"ZooKeeper at {self.address.servers} could not be reached in {seconds:g} s; "
                f"check the address{secured}, and that it is running"
            )
        if self._turned_away:
            self._give_up()
            raise self._refused("connect", AuthFailedError())

    @property
    def _turned_away(self) -> bool:
        """The server rejected our credentials: kazoo ends each request at once with AuthFailedError."""
        return bool(self.client.client_state == KeeperState.AUTH_FAILED)

    def _give_up(self) -> None:
        self._closed.set()
        self._stop_client(_START_STEP_SECONDS)

    def _stop_client(self, seconds: float) -> None:
        """Stop kazoo in a thread, abandoned if it hangs in a connect."""
        thread = threading.Thread(target=self._stop_kazoo, name="bookspark-metadata-stop", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending and starts no threads.
            self._stop_kazoo()
        else:
            thread.join(seconds)

    def _stop_kazoo(self) -> None:
        try:
            with self._begins_or_ends:
                self.client.stop()
                self.client.close()
        except Exception as error:
            log.info("ending the ZooKeeper session: %s", error)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
            self._on_connected()
        elif not self._closed.is_set():
            if self._connected.is_set():
                self.figures.disconnected()
            if self._turned_away:
                # No need to wait: each request fails at once.
                self._connected.set()
                threading.Thread(target=self._ask_again, name="bookspark-metadata-again", daemon=True).start()
            else:
                self._connected.clear()

    def _ask_again(self) -> None:
        """Connect again after AUTH_FAILED: kazoo mistakes a server that ends during the SASL exchange for a rejection, and
        gives up."""
        while not self._closed.wait(_START_STEP_SECONDS):
            with self._begins_or_ends:
                if self._closed.is_set():
                    return
                self._connected.clear()
                try:
                    self.client.start_async()
                    return
                except Exception as error:
                    # Kazoo's last thread has not ended.
                    log.warning("a new session of ZooKeeper could not be begun, which is tried again: %s", error)

    def _check_usable(self, what: str) -> None:
        check_may_ask_store()
        self._owner.check()
        if self._closed.is_set():
            raise MetadataStoreError(f"{what}: this connection to ZooKeeper is closed; make a new one")

    def _gather(self, what: str, send: Callable[[], Sequence[Any]]) -> tuple[list[Any], bool]:
        begun = time.monotonic()
        try:
            found = self._gathered(what, send)
        except MetadataStoreError:
            self.figures.failed()
            raise
        self.figures.answered(time.monotonic() - begun)
        return found

    def _gathered(self, what: str, send: Callable[[], Sequence[Any]]) -> tuple[list[Any], bool]:
        seconds = min(self.timeout_seconds, patience_seconds())
        deadline = time.monotonic() + seconds
        repeated = False
        while True:
            self._check_usable(what)
            if not self._connected.wait(max(0.0, deadline - time.monotonic())):
                raise self._no_answer(what, seconds)
            self._check_usable(what)
            try:
                return [self._outcome(what, result, deadline, seconds) for result in send()], repeated
            except _LOST:
                repeated = True
                if time.monotonic() > deadline:
                    raise self._no_answer(what, seconds) from None
                # kazoo notifies its waiters of a loss before its listeners.
                self._closed.wait(_PAUSE_SECONDS)

    def _outcome(self, what: str, result: Any, deadline: float, seconds: float) -> Any:
        try:
            return result.get(timeout=max(0.0, deadline - time.monotonic()))
        except DefiniteError as error:
            return error
        except _LOST:
            raise
        except KazooTimeoutError:
            raise self._no_answer(what, seconds) from None
        except KazooException as error:
            raise self._refused(what, error) from error

    def _value(self, outcome: Any, repeated: bool, settle: Callable[[Exception], Result] | None) -> Any:
        if not isinstance(outcome, DefiniteError):
            return outcome
        if repeated and settle is not None:
            return settle(outcome)
        raise outcome

    def _no_answer(self, what: str, seconds: float) -> MetadataStoreError:
        return MetadataStoreError(
            f"{what}: no answer from ZooKeeper at {self.address.servers} in {seconds:g} s; "
            "whether a write was done is unknown: look before repeating it"
        )

    def _refused(self, what: str, error: Exception) -> MetadataStoreError:
        text = f"{type(error).__name__} {error}".strip()
        if isinstance(error, NoAuthError | AuthFailedError | SessionClosedRequireSaslError):
            text += (
                "; end the connection string with ?auth_file=FILE, or with ?sasl_file=FILE for SASL: a file with user:password "
                "that its nodes were made with"
            )
        return MetadataStoreError(f"{what}: ZooKeeper at {self.address.servers} answered with {text}")


def _credentials(option: str, path: str) -> str | None:
    """``user:password`` from the file; None without a path. Raises ConfigurationError."""
    if not path:
        return None
    found = read_secret(path, option).decode(errors="replace").strip()
    if ":" not in found:
        raise ConfigurationError(f"{option} {path} does not hold user:password")
    return found


def _check_readable(option: str, path: str) -> None:
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{option} {path} can't be read: {error.strerror}") from error


@functools.cache
def _warn_of_clear_text(address: Address) -> None:
    """Once for each address in a process: its connections share the warning."""
    remote = [server for server in address.servers.split(",") if not is_loopback(split_address(server)[0])]
    if remote and not address.access.tls_ca:
        log.warning(
            "the password of auth_file %s is sent to ZooKeeper at %s in clear text, for whoever reads the network; use TLS: "
            "tls_ca in the connection string (docs/security.md)",
            address.access.auth_file,
            ",".join(remote),
        )


def _sasl_options(credentials: str) -> dict[str, str]:
    """Raises ConfigurationError if pure-sasl, which kazoo needs, is not installed."""
    with extra_needed("sasl_file"):
        importlib.import_module("puresasl")
    user, _, password = credentials.partition(":")
    return {"mechanism": "DIGEST-MD5", "username": user, "password": password}
