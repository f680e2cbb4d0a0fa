"""A bookie's options: one frozen value, from keyword arguments or from the ``[bookie]`` table of a ``bookspark.toml``.

Units are last in the names; bounds are part of the types. ``conf/bookspark.toml`` shows each option with its default, and a test
keeps the two the same.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.store.wire.security import without_tls
from bookspark.support.addresses import address_text, bracketed, is_loopback, split_address
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Config, IntervalSeconds, Seconds, make_config

Port = Annotated[int, Meta(ge=0, le=65535)]
PortOrAny = Annotated[int, Meta(ge=-1, le=65535)]
Part = Annotated[float, Meta(ge=0, le=1)]
"""A fraction: 0.25 is a quarter."""
DiskUsage = Annotated[float, Meta(gt=0, le=1)]
"""Used fraction of a disk, or of ``directory_bytes_max``."""
EntryLogBytes = Annotated[int, Meta(ge=1, le=1 << 31)]
"""Positions in a log have 32 bits, and the last batch of a log may begin just below this size."""
UnfinishedBytes = Annotated[int, Meta(ge=64 << 20)]
"""Room for some of the longest frames."""
Hours = Annotated[float, Meta(ge=0, le=1e6)]
Milliseconds = Annotated[int, Meta(ge=1, le=1_000_000_000)]
DIRECTORIES_MAX = 64
"""Directories of one bookie at most. They share the range of log numbers."""


_LOOPBACK = "127.0.0.1"


class BookieConfig(Config, frozen=True, kw_only=True):
    """Options of a bookie process. ``directories`` (one per disk) and ``zookeeper`` have no default."""

    option_kind = "bookie option"

    directories: tuple[str, ...]
    """Absolute paths, one for each disk, for this bookie's files only."""
    zookeeper: str
    """``host:port[,host:port…][/chroot]``."""
    host: str = _LOOPBACK
    """Address to listen on, also for clients. 0.0.0.0 and :: need an ``advertised_address``."""
    port: Port = 0
    """Port to listen on. 0: any free port; it may change."""
    advertised_address: str = ""
    """``host:port`` for clients behind a proxy or NAT, instead of ``host`` and ``port``. Placeholders: ``{host}``,
    ``{hostname}`` (the machine's name), ``{port}``, ``{bookie_id}``."""
    bookkeeper_port: PortOrAny = 0
    """Port at ``host`` for clients of Apache BookKeeper. 0: none. -1: any free port."""
    metrics_port: PortOrAny = 0
    """Port at ``host`` for Prometheus and probes (``/health``, ``/ready``), or the next free one of 64. 0: none. -1: any free
    port. ``bookspark bookie status`` prints it."""
    lease_seconds: Seconds = 600.0
    """Time that a bookie serves without a lease holder."""
    entry_log_bytes_max: EntryLogBytes = 64 << 20
    """Size at which an entry log is sealed."""
    checkpoint_interval_seconds: IntervalSeconds = 60.0
    """Time between checkpoints of the index. A boot scans later entries."""
    rewrite_sealed_logs: bool = True
    """Rewrite sealed logs: live entries only, sorted and compressed."""
    gc_wait_time_seconds: IntervalSeconds = 900.0
    """Time between garbage collections, which remove deleted ledgers; rewriting follows."""
    minor_compaction_threshold: Part = 0.2
    """Live part below which a minor compaction rewrites a log."""
    minor_compaction_interval_seconds: IntervalSeconds = 3600.0
    """Time between minor compactions."""
    major_compaction_threshold: Part = 0.8
    """Live part below which a major compaction rewrites a log."""
    major_compaction_interval_seconds: IntervalSeconds = 86400.0
    """Time between major compactions. A full directory starts another. The collection before one also removes copies that the
    metadata does not name."""
    compaction_rate_bytes_per_second: BytesOrNone = 64 << 20
    """Limit of rewriting, reads and writes together. 0: none, as while rewriting is behind or a directory nearly full."""
    scrub_interval_hours: Hours = 168.0
    """Time within which every stored byte is read, checked and, if damaged, replaced. 0: check only bytes that clients read."""
    scrub_rate_bytes_per_second: BytesOrNone = 64 << 20
    """Limit of a late scrub. 0: none."""
    disk_check_interval_seconds: IntervalSeconds = 10.0
    """Time between checks of the disks' free space."""
    disk_usage_warn_threshold: DiskUsage = 0.90
    """Used part of a disk that logs a warning."""
    disk_usage_threshold: DiskUsage = 0.95
    """Used part of a disk at which a directory takes no more adds. With all directories full the bookie is read-only."""
    disk_usage_low_water_mark_threshold: DiskUsage = 0.90
    """Used part of a disk below which a full directory takes adds again."""
    disk_usage_recovery_threshold: DiskUsage = 0.98
    """Used part of a disk up to which a full directory takes writes of recovery and repair."""
    directory_bytes_max: BytesOrNone = 0
    """Size limit of each directory. 0: its disk."""
    request_bytes_in_flight_max: AtLeastOne = 32 << 20
    """Bytes of unsynced adds above which no more requests are read."""
    read_bytes_in_flight_max: AtLeastOne = 64 << 20
    """Bytes of entries on their way to readers. Further reads wait."""
    unfinished_bytes_max: UnfinishedBytes = 256 << 20
    """Bytes of unfinished frames, unread answers, long polls and waiting requests. Above it connections end, first those
    without an acknowledged add."""
    requests_in_flight_max: AtLeastOne = 10_000
    """Unanswered requests of a connection. More are refused."""
    journal_write_data: bool = True
    """Acknowledge an add after its sync. False: before (BP-46); other bookies give back what a crash loses."""
    background_sync_interval_ms: Milliseconds = 100
    """Time until entries acknowledged unsynced are synced."""
    background_sync_bytes: AtLeastOne = 8 << 20
    """Bytes of such entries in a directory that start the sync earlier."""
    trust_boot_id: bool = False
    """Without the journal: a crash of the process is lossless if its host stayed up."""
    heal_lossy_boots: bool = True
    """Copy back, while serving, what a crash or lost disk took. False: on request only."""
    healing_bytes_per_second: BytesOrNone = 64 << 20
    """Limit of healing. 0: none."""
    bookie_id: str = ""
    """Id of the bookie. "": the first boot makes it up. With all directories emptied, a bookie comes back only under its id."""
    stamp_missing_cookies: bool = False
    """Start without the contents of directories that lost their cookie. ``bookspark cookie fix`` allows that once."""
    add_empty_directories: bool = False
    """Accept new empty directories. False: refuse to start with them."""
    zookeeper_timeout_seconds: Seconds = 10.0
    """Time for ZooKeeper's answer. Then the request fails."""
    zookeeper_session_timeout_seconds: Seconds = 10.0
    """Time that a bookie stays registered after a crash."""
    rack: str = ""
    """Bookies of a rack fail together; copies are spread over racks (``bookspark cluster placement``)."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Other groups that fail together, for placement ``one_per_<label>``."""
    tls_certificate: str = ""
    """PEM file of the bookie's certificate, for the host that clients dial; then TLS only."""
    tls_key: str = ""
    """PEM file of its key. "": in the certificate's file."""
    tls_client_ca: str = ""
    """PEM file of the CA that must have signed clients' certificates."""
    tls_ca: str = ""
    """PEM file of the CA of other bookies' certificates, to heal or repair. "": ``tls_client_ca``."""
    tls_client_certificate: str = ""
    """PEM file of this bookie's certificate as a client of other bookies. "": ``tls_certificate``."""
    tls_client_key: str = ""
    """PEM file of its key. "": in the file of ``tls_client_certificate``."""
    tls_roles: bool = False
    """Certificates need an extended key usage: a client's clientAuth, the bookie's own serverAuth; with ``tls_client_ca`` the
    bookie then needs a ``tls_client_certificate``. (Other usages alone are always refused.)"""
    shared_secret_file: str = ""
    """File with secrets, one a line; each client must prove one. It is reread when it changes."""
    shared_secret_without_tls: bool = False
    """Accept a secret without TLS off loopback: it stops strangers who reach a port, but no relay on the way."""
    record_decisions: str = ""
    """Folder for the process's decisions, without payloads and passwords, for ``bookspark replay``; at most 2 GiB a process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.directories:
            raise ConfigurationError("a bookie needs at least one directory: set directories")
        if len(self.directories) > DIRECTORIES_MAX:
            raise ConfigurationError(
                f"directories names {len(self.directories)} directories, and a bookie has {DIRECTORIES_MAX} at most; start more "
                "bookies, each with some of them"
            )
        if self.advertised_address:
            host, _, port = advertised_address(self.advertised_address, "host", "hostname", 1, "bookie").rpartition(":")
            if _is_wildcard(host) or not (port.isdecimal() and 1 <= int(port) <= 65535):
                raise ConfigurationError(
                    f"advertised_address {self.advertised_address!r} is not a host:port that clients can dial; give both"
                )
        elif _is_wildcard(self.host):
            raise ConfigurationError(
                f"host {self.host!r} can be listened on, but not dialled; set host to an address of this machine that clients "
                "reach, or set advertised_address to a host:port that they reach"
            )
        if self.bookkeeper_port and self.shared_secret_file:
            raise ConfigurationError(
                "bookkeeper_port serves clients without a secret, and this bookie asks its clients for one; leave out "
                "bookkeeper_port or shared_secret_file (tls_client_ca asks clients of both ports for a certificate)"
            )
        if self.tls_client_key and not self.tls_client_certificate:
            raise ConfigurationError("tls_client_key is of no use without tls_client_certificate; set that too")
        if self.tls_roles and self.tls_client_ca and not self.tls_client_certificate:
            raise ConfigurationError(
                "with tls_roles this bookie's tls_certificate is no client's, and other bookies ask for one when it heals; set "
                "tls_client_certificate"
            )
        if not self.shared_secret_without_tls and (where := self.open_secret()):
            raise ConfigurationError(without_tls(where))
        marks = (
            self.disk_usage_low_water_mark_threshold,
            self.disk_usage_threshold,
            self.disk_usage_recovery_threshold,
        )
        if not marks[0] <= marks[1] <= marks[2]:
            raise ConfigurationError(
                f"disk_usage_low_water_mark_threshold {marks[0]}, disk_usage_threshold {marks[1]} and "
                f"disk_usage_recovery_threshold {marks[2]} have to ascend, between 0 and 1 (default 0.9, 0.95 and 0.98)"
            )

    def open_secret(self) -> str:
        """The option by which a secret without TLS goes off loopback, with its value; "": none does."""
        if not self.shared_secret_file or self.tls_certificate:
            return ""
        if not is_loopback(self.host):
            return f"host {self.host!r}"
        if pattern := self.advertised_address:
            address = advertised_address(pattern, self.host, "hostname", 1, "bookie")
            if not is_loopback(address.rpartition(":")[0]):
                return f"advertised_address {pattern!r}"
        return ""


def advertised_address(pattern: str, host: str, hostname: str, port: int, bookie_id: str) -> str:
    """Address for clients, from the option's pattern. Raises ConfigurationError for an unknown {placeholder}."""
    fields = {"host": bracketed(host), "hostname": hostname, "port": str(port), "bookie_id": bookie_id}
    for name in re.findall(r"\{([^{}]*)\}", pattern):
        if name not in fields:
            raise ConfigurationError(
                f"advertised_address {pattern!r}: {{{name}}} stands for nothing; known are "
                + ", ".join(f"{{{field}}}" for field in fields)
            )
        pattern = pattern.replace(f"{{{name}}}", fields[name])
    return pattern


def advertised(config: BookieConfig, address: str, bookie_id: str) -> str:
    """Address for clients. ``address``: ``host:port`` of the listening socket.

    A name in ``host`` stays a name: a certificate is for names, and clients may resolve the name to another address."""
    _, port = split_address(address)
    if config.advertised_address:
        return advertised_address(config.advertised_address, config.host, socket.gethostname(), port, bookie_id)
    return address_text(config.host, port) if is_name(config.host) else address


def is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return bool(host)
    return False


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        # A host name.
        return False


def bookie_config(**options: Any) -> BookieConfig:
    """A BookieConfig of ``options``. Raises ConfigurationError, with the option's name, for an unknown option or a bad value."""
    return make_config(BookieConfig, options)


def with_metrics(options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` of a bookie; if they have no ``metrics_port``, and the extra ``metrics`` is installed, with any free one where
    that opens no door: on loopback, at a bookie that asks nobody who he is. A fixed port could be another application's."""
    asks = options.get("shared_secret_file") or options.get("tls_client_ca")
    if asks or not is_loopback(options.get("host", _LOOPBACK)) or find_spec("prometheus_client") is None:
        return dict(options)
    return {"metrics_port": -1, **options}
