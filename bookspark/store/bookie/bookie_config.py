"""A bookie's options: one frozen value, from keyword arguments or from the ``[bookie]`` table of a ``bookspark.toml``.

Units are last in the names; bounds are part of the types. ``conf/bookspark.toml`` shows each option with its default, and a test
keeps the two the same.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Config, IntervalSeconds, Seconds, make_config

Port = Annotated[int, Meta(ge=0, le=65535)]
PortOrAny = Annotated[int, Meta(ge=-1, le=65535)]
Part = Annotated[float, Meta(ge=0, le=1)]
"""A part of a whole: 0.25 is a quarter."""
DiskUsage = Annotated[float, Meta(gt=0, le=1)]
"""The part of a disk, or of ``directory_bytes_max``, that is used."""
EntryLogBytes = Annotated[int, Meta(ge=1, le=1 << 31)]
"""A position in a log has 32 bits, and a log's last batch may begin just below this size."""
Hours = Annotated[float, Meta(ge=0, le=1e6)]
Milliseconds = Annotated[int, Meta(ge=1, le=1_000_000_000)]
DIRECTORIES_MAX = 64
"""Directories of one bookie. Each has its share of the numbers of logs."""


class BookieConfig(Config, frozen=True, kw_only=True):
    """Everything that a bookie process is told. ``directories`` (one per disk) and ``zookeeper`` have no default."""

    option_kind = "bookie option"

    directories: tuple[str, ...]
    """Absolute paths, one for each disk. They are the bookie's own: nothing else may lie in them."""
    zookeeper: str
    """``host:port[,host:port…][/chroot]``."""
    host: str = "127.0.0.1"
    """The address to listen on, which clients are told too. 0.0.0.0 and :: need an ``advertised_address``."""
    port: Port = 0
    """The port to listen on. 0: any free port. A bookie is known by its id, so it may come back at another port."""
    advertised_address: str = ""
    """``host:port`` that clients are told instead of ``host`` and ``port``. Set it if clients come through a proxy or NAT.
    ``{host}``, ``{hostname}`` (the machine's own name), ``{port}`` and ``{bookie_id}`` stand for the bookie's own:
    ``{hostname}.example.org:{port}`` is one setting for many bookies."""
    bookkeeper_port: PortOrAny = 0
    """The port at ``host`` where clients of Apache BookKeeper are served. 0: they are not served. -1: any free port, for hosts
    with several bookies."""
    metrics_port: PortOrAny = 0
    """The port at ``host`` where Prometheus and probes (``/health``, ``/ready``) are answered; if another process has it, the
    next free one of 64. 0: nobody is answered. -1: any free port. The bookie's status tells which one it is."""
    lease_seconds: Seconds = 600.0
    """How long a bookie serves while nobody holds its lease, in seconds, from the last word of whoever held it. After that it
    shuts down cleanly."""
    entry_log_bytes_max: EntryLogBytes = 64 << 20
    """An entry log of this size, in bytes, is sealed, and a new one is begun."""
    checkpoint_interval_seconds: IntervalSeconds = 60.0
    """Time between two checkpoints of the index, in seconds. A boot scans what was written since the last one."""
    rewrite_sealed_logs: bool = True
    """Rewrite sealed logs in the background. A rewritten log holds live entries only, sorted and compressed."""
    gc_wait_time_seconds: IntervalSeconds = 900.0
    """Time between two garbage collections, in seconds. One removes deleted ledgers; rewriting of sealed logs follows it."""
    minor_compaction_threshold: Part = 0.2
    """A minor compaction rewrites the logs of which less than this part (0 to 1) is live."""
    minor_compaction_interval_seconds: IntervalSeconds = 3600.0
    """Time between two minor compactions, in seconds."""
    major_compaction_threshold: Part = 0.8
    """A major compaction rewrites the logs of which less than this part (0 to 1) is live."""
    major_compaction_interval_seconds: IntervalSeconds = 86400.0
    """Time between two major compactions, in seconds. There is one besides whenever a directory is full."""
    compaction_rate_bytes_per_second: BytesOrNone = 64 << 20
    """How much rewriting may read and write together, in bytes a second. 0: no limit. There is none either while rewriting is
    behind, and for a directory that is nearly full (``serving.maintenance``)."""
    scrub_interval_hours: Hours = 168.0
    """Every byte that the bookie keeps is read from the disk and checked within this time, in hours. Another bookie's copy
    replaces a batch that can't be read; what the process knows is written anew. 0: only what somebody reads is checked."""
    scrub_rate_bytes_per_second: BytesOrNone = 64 << 20
    """How much the scrub may read, in bytes a second, when it is behind its pace. 0: no limit."""
    disk_check_interval_seconds: IntervalSeconds = 10.0
    """Time between two looks at the free space of the disks, in seconds."""
    disk_usage_warn_threshold: DiskUsage = 0.90
    """The bookie logs a warning when this part (0 to 1) of a disk is used."""
    disk_usage_threshold: DiskUsage = 0.95
    """A directory takes no more adds when this part (0 to 1) of its disk is used. A bookie whose directories are all full is
    read-only."""
    disk_usage_low_water_mark_threshold: DiskUsage = 0.90
    """A full directory takes adds again when less than this part (0 to 1) of its disk is used."""
    disk_usage_recovery_threshold: DiskUsage = 0.98
    """A full directory takes what ledger recovery and repair write, until this part (0 to 1) of its disk is used."""
    directory_bytes_max: BytesOrNone = 0
    """Size limit of each directory, in bytes. 0: the size of its disk."""
    request_bytes_in_flight_max: AtLeastOne = 32 << 20
    """When more bytes of adds than this wait for their sync, the bookie stops reading from its connections."""
    read_bytes_in_flight_max: AtLeastOne = 64 << 20
    """How many bytes of entries may be on their way to readers, over all connections. Reads beyond that wait."""
    requests_in_flight_max: AtLeastOne = 10_000
    """How many requests of one connection may wait for their answers. The bookie refuses more as too many requests."""
    journal_write_data: bool = True
    """True: an add is acknowledged after its sync. False: before its sync (BP-46), and the bookie gets back from other bookies
    what a crash loses."""
    background_sync_interval_ms: Milliseconds = 100
    """Entries that were acknowledged before their sync are synced after this time, in milliseconds."""
    background_sync_bytes: AtLeastOne = 8 << 20
    """Such entries are synced earlier when one directory has this many bytes of them."""
    trust_boot_id: bool = False
    """Only without the journal. True: a crash of the bookie's process counts as lossless if its host did not go down."""
    heal_lossy_boots: bool = True
    """True: the bookie copies back, while it serves, what a crash or a lost disk took. False: somebody starts that later."""
    healing_bytes_per_second: BytesOrNone = 64 << 20
    """How much healing may copy, in bytes a second. 0: no limit."""
    bookie_id: str = ""
    """The id of the bookie. "": the first boot makes one up. A bookie whose directories were all emptied comes back only under
    its id."""
    stamp_missing_cookies: bool = False
    """True: start without what was in directories that lost their cookie. ``bookspark cookie fix`` allows that once."""
    add_empty_directories: bool = False
    """True: take in directories that are empty and new to the bookie. False: refuse to start with them."""
    zookeeper_timeout_seconds: Seconds = 10.0
    """How long ZooKeeper may take to answer, in seconds. After that the request fails."""
    zookeeper_session_timeout_seconds: Seconds = 10.0
    """How long a bookie stays registered after a crash, in seconds. After a longer pause it registers again by itself."""
    rack: str = ""
    """Bookies of one rack fail together. The client's ``placement`` can put the copies of an entry on different racks."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Other groups of bookies that fail together. ``placement`` can put copies on bookies with different values of a label."""
    tls_certificate: str = ""
    """PEM file of the bookie's certificate, for the host that clients dial. With it the bookie speaks nothing but TLS."""
    tls_key: str = ""
    """PEM file of the certificate's key. "": the key is in the file of the certificate."""
    tls_client_ca: str = ""
    """PEM file of a CA. With it the bookie serves only clients whose certificate this CA signed."""
    tls_ca: str = ""
    """PEM file of the CA that signs bookies' certificates, for what the bookie reads from others to heal, or for
    a repair. "": ``tls_client_ca``."""
    shared_secret_file: str = ""
    """File with secrets, one a line. With it the bookie serves only clients that know one of them. It is read again when it
    changes."""
    record_decisions: str = ""
    """Folder into which the process records what its decision machines were given and what they answered, for ``bookspark
    replay``. "": nothing is recorded. A process keeps 2 GiB at most. The record has no payloads and no passwords."""

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
            host, _, port = advertised_address(self.advertised_address, "host", "hostname", "1", "bookie").rpartition(
                ":"
            )
            if _is_wildcard(host) or not (port.isdecimal() and 1 <= int(port) <= 65535):
                raise ConfigurationError(
                    f"advertised_address {self.advertised_address!r} is not a host:port that clients can dial; give both"
                )
        elif _is_wildcard(self.host):
            raise ConfigurationError(
                f"host {self.host!r} can be listened on, but not dialled; set host to an address of this machine that clients "
                "reach, or set advertised_address to the host:port that they are to be told"
            )
        if self.bookkeeper_port and self.shared_secret_file:
            raise ConfigurationError(
                "bookkeeper_port serves clients without a secret, and this bookie asks its clients for one; leave out "
                "bookkeeper_port or shared_secret_file (tls_client_ca asks clients of both ports for a certificate)"
            )
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


def advertised_address(pattern: str, host: str, hostname: str, port: str, bookie_id: str) -> str:
    """What clients are told. Raises ConfigurationError for a name in braces that stands for nothing."""
    fields = {"host": host, "hostname": hostname, "port": port, "bookie_id": bookie_id}
    for name in re.findall(r"\{([^{}]*)\}", pattern):
        if name not in fields:
            raise ConfigurationError(
                f"advertised_address {pattern!r}: {{{name}}} stands for nothing; known are "
                + ", ".join(f"{{{field}}}" for field in fields)
            )
        pattern = pattern.replace(f"{{{name}}}", fields[name])
    return pattern


def is_name(host: str) -> bool:
    """Is it a name, and not an address?"""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return bool(host)
    return False


def _is_wildcard(host: str) -> bool:
    """Does it stand for all addresses of a machine?"""
    try:
        return not host or ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        # It is a name.
        return False


def is_loopback(host: str) -> bool:
    """Does only this machine reach it?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def bookie_config(**options: Any) -> BookieConfig:
    """A BookieConfig of ``options``. Raises ConfigurationError for one that is unknown or can't be used, by its name."""
    return make_config(BookieConfig, options)
