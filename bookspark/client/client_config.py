"""A client's options: one frozen value, from the keyword arguments of ``BookKeeper``. Units are last in the names."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from bookspark.errors import ConfigurationError
from bookspark.metadata.records.codec import learn
from bookspark.protocol.ledger.option_checks import check_names, check_numbers
from bookspark.wire.entry_batch import FRAME_BYTES_MAX

_SECONDS = (0.001, 1e6)
"""Of what is waited for: more would not fit the milliseconds that the system counts in."""
_SECONDS_OR_NONE = (0.0, 1e6)
_BOUNDS = {
    "add_timeout_seconds": _SECONDS,
    "answer_timeout_seconds": _SECONDS,
    "recovery_timeout_seconds": _SECONDS,
    "connect_timeout_seconds": _SECONDS,
    "metadata_timeout_seconds": _SECONDS,
    "metadata_session_timeout_seconds": _SECONDS,
    "speculative_read_delay_ms": (0, 1e9),
    "quarantine_seconds": _SECONDS_OR_NONE,
    "racks_min": (1, math.inf),
    "explicit_lac_interval_seconds": _SECONDS_OR_NONE,
    "frame_bytes": (1, FRAME_BYTES_MAX // 2),  # digests come on top, and may be almost as long as all that is counted
    "frames_in_flight_max": (1, math.inf),
    "sync_interval_seconds": _SECONDS_OR_NONE,
    "bookie_stall_seconds": _SECONDS,
}


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every blocking call ends within one of these times."""

    add_timeout_seconds: float = 30.0
    """After so long without progress, appends that an ack quorum did not acknowledge fail, and the handle with them."""
    answer_timeout_seconds: float = 5.0
    """One bookie's time to answer. A read asks the next replica then, a writer looks for another bookie."""
    recovery_timeout_seconds: float = 60.0
    connect_timeout_seconds: float = 3.0
    metadata_timeout_seconds: float = 10.0
    metadata_session_timeout_seconds: float = 10.0
    """So long after a client died, its locks in the metadata store are free."""
    client_name: str = ""
    """Told to bookies, for their logs; by default host and process id."""
    speculative_read_delay_ms: int = 500
    """When a replica has not answered a read for so long, the next one is asked beside it, and a read of the LAC goes by what
    others told. 0: only once it has failed."""
    sticky_reads: bool = True
    """Go on reading from the replica that delivered, whose pages are warm then; if false, from each in turn."""
    read_own_host_first: bool = False
    """Ask a replica on this host before the others."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only when an ack quorum can't be reached without it, and not at its first failure."""
    quarantine_seconds: float = 10.0
    """For so long a bookie that failed is chosen for an ensemble only if there is no other, and read from last."""
    placement: str = "random"
    """Which bookies make an ensemble: random, rack_aware, one_per_host or one_per_<label> (see ``client.placement``)."""
    racks_min: int = 1
    """With rack_aware: refuse ensembles that would keep an entry on fewer racks."""
    placement_by_free_space: bool = False
    """Choose bookies with more free space more often."""
    opportunistic_striping: bool = False
    """Create a ledger although there are fewer bookies than its ensemble size, as long as there is a write quorum."""
    explicit_lac_interval_seconds: float = 0.1
    """How long an idle writer keeps a LAC that no entry told the bookies to itself; longer if hundreds of a client's ledgers are
    idle, as it tells 320 a second."""
    frame_bytes: int = 640 << 10
    """Pending appends are gathered into frames of about this size. A frame costs a bookie and a client some 0.1 ms each, whatever
    it holds; but to read one entry of it, a bookie reads and checks all of it."""
    frames_in_flight_max: int = 8
    """Per ledger. While so many are under way, appends gather."""
    bytes_in_flight_max: int = 64 << 20
    """Per ledger: what is not acknowledged, not synced (VD_JOURNAL) or not on its whole write set (guaranteed) yet. Over this
    ``append_async`` waits."""
    sync_bytes: int = 16 << 20
    """A VD_JOURNAL ledger is synced each time that so much was appended."""
    sync_interval_seconds: float = 0.0
    """A VD_JOURNAL ledger is synced so often, if there is anything to sync; 0: not by time."""
    bookie_bytes_queued_max: int = 64 << 20
    """A bookie that is so far behind is cut off; what still counts is sent again when it is back. From half of it on, appends
    wait for the bookie."""
    bookie_stall_seconds: float = 2.0
    """A bookie that takes in nothing for so long, while appends wait for it, is cut off too."""
    tls_ca: str = ""
    """PEM file of the CA that signs bookies' certificates; with it the client speaks TLS, and with nobody else."""
    tls_certificate: str = ""
    """PEM file of the client's own certificate, for bookies that ask for one."""
    tls_key: str = ""
    """PEM file of its key, if that is not in the same file."""
    shared_secret_file: str = ""
    """File with the secret that bookies ask for."""

    def __post_init__(self) -> None:
        check_numbers(self, _BOUNDS, "client option")
        if self.bookie_bytes_queued_max < self.frame_bytes:
            raise ConfigurationError(
                f"bookie_bytes_queued_max {self.bookie_bytes_queued_max} has to be at least frame_bytes ({self.frame_bytes}): "
                "otherwise no frame could be sent"
            )
        if not 0 < self.sync_bytes <= self.bytes_in_flight_max // 2:
            raise ConfigurationError(
                f"sync_bytes {self.sync_bytes} has to be above 0 and at most half of bytes_in_flight_max "
                f"({self.bytes_in_flight_max}): what is not synced is kept, and appends would wait for room that no sync makes"
            )


learn(ClientConfig)


def client_config(**options: Any) -> ClientConfig:
    """A ClientConfig from ``options``; an unknown or ill-typed one is a ConfigurationError that names it."""
    check_names(options, ClientConfig.__struct_fields__, "client option")
    try:
        return msgspec.convert(options, ClientConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"client option: {error}") from error
