"""A bookie's options: one frozen value, from keyword arguments or from the ``[bookie]`` table of a ``bookspark.toml``.

Units are last in the names. ``conf/bookspark.toml`` shows each option with its default; a test keeps the two the same.
"""

from __future__ import annotations

import ipaddress
import math
from typing import Any

import msgspec

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.option_checks import check_names, check_numbers

_SECONDS = (0.001, 1e6)
"""Of what is waited for: more would not fit the milliseconds that the system counts in."""
_INTERVAL_SECONDS = (0.001, 1e9)
_PORT = (0, 65535)
_PART = (0.0, 1.0)
_BYTES_OR_NONE = (0, math.inf)
_BOUNDS = {
    "port": _PORT,
    "metrics_port": _PORT,
    "lease_seconds": _SECONDS,
    "entry_log_bytes_max": (1, 1 << 31),
    "checkpoint_interval_seconds": _INTERVAL_SECONDS,
    "gc_wait_time_seconds": _INTERVAL_SECONDS,
    "minor_compaction_threshold": _PART,
    "minor_compaction_interval_seconds": _INTERVAL_SECONDS,
    "major_compaction_threshold": _PART,
    "major_compaction_interval_seconds": _INTERVAL_SECONDS,
    "compaction_rate_bytes_per_second": _BYTES_OR_NONE,
    "disk_check_interval_seconds": _INTERVAL_SECONDS,
    "directory_bytes_max": _BYTES_OR_NONE,
    "request_bytes_in_flight_max": (1, math.inf),
    "requests_in_flight_max": (1, math.inf),
    "background_sync_interval_ms": (1, 1e9),
    "background_sync_bytes": (1, math.inf),
    "healing_bytes_per_second": _BYTES_OR_NONE,
    "zookeeper_timeout_seconds": _SECONDS,
    "zookeeper_session_timeout_seconds": _SECONDS,
}


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a bookie process is told. ``directories`` (one per disk) and ``zookeeper`` have no default."""

    directories: tuple[str, ...]
    """Absolute paths, one per disk, the bookie's own: nothing else may lie in them."""
    zookeeper: str
    """``host:port[,host:port…][/chroot]``."""
    host: str = "127.0.0.1"
    """The address to listen on, and the one that clients are told; 0.0.0.0 or :: only with advertised_address."""
    port: int = 0
    """0: any free one. Identity is the cookie's, so a bookie may come back at another port."""
    advertised_address: str = ""
    """``host:port`` that clients are told instead of where it listens, if they reach it through a proxy or NAT."""
    metrics_port: int = 0
    """Where Prometheus is answered, at ``host``; 0: nowhere."""
    lease_seconds: float = 60.0
    """How long a bookie serves on with nobody holding its lease before it shuts down cleanly."""
    entry_log_bytes_max: int = 64 << 20
    """A log that has reached this is sealed and a new one begun."""
    checkpoint_interval_seconds: float = 60.0
    rewrite_sealed_logs: bool = True
    """Sealed logs are rewritten in the background: what lives of them, sorted and compressed."""
    gc_wait_time_seconds: float = 900.0
    """How often deleted ledgers are looked for, and sealed logs rewritten."""
    minor_compaction_threshold: float = 0.2
    """Logs of which less than this part lives are rewritten, every"""
    minor_compaction_interval_seconds: float = 3600.0
    """so many seconds;"""
    major_compaction_threshold: float = 0.8
    """and those of which less than this lives, every"""
    major_compaction_interval_seconds: float = 86400.0
    """so many seconds, and whenever a directory is full."""
    compaction_rate_bytes_per_second: int = 64 << 20
    """What rewriting may read and write together; 0: as fast as it can."""
    disk_check_interval_seconds: float = 10.0
    disk_usage_warn_threshold: float = 0.90
    """A disk that is used to this part is warned of."""
    disk_usage_threshold: float = 0.95
    """From here on a directory takes no more adds. A bookie with no other is read-only,"""
    disk_usage_low_water_mark_threshold: float = 0.90
    """until it is used less than this."""
    disk_usage_recovery_threshold: float = 0.98
    """Up to here a full directory takes what ledger recovery and repair write."""
    directory_bytes_max: int = 0
    """Of each directory, as if that were the size of its disk; 0: the disk's own."""
    request_bytes_in_flight_max: int = 64 << 20
    """Adds waiting for their sync, in bytes, over which a bookie stops reading from its connections."""
    requests_in_flight_max: int = 10_000
    """Of one connection; more are refused as too many until some are answered."""
    journal_write_data: bool = True
    """Ack adds after their sync. False: before it (BP-46); what a crash loses then, the bookie gets back from its peers."""
    background_sync_interval_ms: int = 100
    """What was acked before its sync is synced after so long,"""
    background_sync_bytes: int = 8 << 20
    """or when it is so many bytes in one directory."""
    trust_boot_id: bool = False
    """Without the journal: take a crash of the bookie's process, its host running on, for one that lost nothing."""
    heal_lossy_boots: bool = True
    """Bring back from other bookies what a crash or a lost disk took, while serving. False: leave that to be started later."""
    healing_bytes_per_second: int = 64 << 20
    """What that may copy; 0: as fast as it can."""
    bookie_id: str = ""
    """The id that it is to have; by default one is made up at the first boot. A bookie whose directories were all emptied can
    come back only if it is named."""
    stamp_missing_cookies: bool = False
    """Go on without what was in directories that lost their cookie, as ``bookspark cookie fix`` allows once."""
    add_empty_directories: bool = False
    """Take in directories that are empty and new to the bookie."""
    zookeeper_timeout_seconds: float = 10.0
    zookeeper_session_timeout_seconds: float = 10.0
    """For so long after a crash the bookie stays registered; after a longer pause it registers again by itself."""
    rack: str = ""
    """Which bookies fail together: the client's ``placement`` can keep the copies of an entry apart."""
    labels: dict[str, str] = {}
    """Anything else that ``placement`` may want to keep apart."""
    tls_certificate: str = ""
    """PEM file of the bookie's certificate, for the host that clients dial; with it the bookie speaks TLS and nothing else."""
    tls_key: str = ""
    """PEM file of its key, if that is not in the same file."""
    tls_client_ca: str = ""
    """PEM file of a CA; with it only clients whose certificate it signed are served."""
    tls_ca: str = ""
    """PEM file of the CA that signs bookies' certificates, for what the bookie asks of others while it heals; by default
    tls_client_ca."""
    shared_secret_file: str = ""
    """File with a secret; with it only clients that know it are served."""

    def __post_init__(self) -> None:
        if not self.directories:
            raise ConfigurationError("a bookie needs at least one directory: set directories")
        check_numbers(self, _BOUNDS, "bookie option")
        if self.advertised_address:
            host, _, port = self.advertised_address.rpartition(":")
            if _is_wildcard(host) or not (port.isdecimal() and 1 <= int(port) <= 65535):
                raise ConfigurationError(
                    f"advertised_address {self.advertised_address!r} is not a host:port that clients can dial; give both"
                )
        elif _is_wildcard(self.host):
            raise ConfigurationError(
                f"host {self.host!r} can be listened on, but not dialled; set host to an address of this machine that clients "
                "reach, or set advertised_address to the host:port that they are to be told"
            )
        marks = (
            self.disk_usage_low_water_mark_threshold,
            self.disk_usage_threshold,
            self.disk_usage_recovery_threshold,
        )
        if not (0 < self.disk_usage_warn_threshold <= 1 and 0 < marks[0] <= marks[1] <= marks[2] <= 1):
            raise ConfigurationError(
                f"disk_usage_low_water_mark_threshold {marks[0]}, disk_usage_threshold {marks[1]} and "
                f"disk_usage_recovery_threshold {marks[2]} have to ascend, between 0 and 1 (default 0.9, 0.95 and 0.98)"
            )


def _is_wildcard(host: str) -> bool:
    """Does it stand for all addresses of a machine?"""
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:  # a name
        return False


def bookie_config(**options: Any) -> BookieConfig:
    """A BookieConfig from ``options``; an unknown or ill-typed one is a ConfigurationError that names it."""
    check_names(options, BookieConfig.__struct_fields__, "bookie option")
    try:
        return msgspec.convert(options, BookieConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"bookie option: {error}") from error
