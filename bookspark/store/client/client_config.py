"""A client's options: one frozen value, from keyword arguments or from the ``[client]`` table of a ``bookspark.toml``.

Units are last in the names; bounds are part of the types. ``conf/bookspark.toml`` shows each option with its default, and a test
keeps the two the same.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from bookspark.store.metadata.records.documents import learn
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.support.arguments import AtLeastOne, Config, Seconds, SecondsOrNone, make_config

Milliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000)]
FrameBytes = Annotated[int, Meta(ge=1, le=FRAME_BYTES_MAX // 2)]
"""At most half of FRAME_BYTES_MAX: digests are not counted, and may take almost as many bytes as the payloads."""


class ClientConfig(Config, frozen=True, kw_only=True):
    """All options of a client. Every blocking call ends within one of the time limits."""

    option_kind = "client option"

    add_timeout_seconds: Seconds = 30.0
    """Time without progress after which unacknowledged appends and the ledger's handle fail."""
    answer_timeout_seconds: Seconds = 5.0
    """Time for a bookie's answer. Then another bookie is asked."""
    recovery_timeout_seconds: Seconds = 60.0
    """Time for a ledger's recovery. Then it fails and can be retried."""
    connect_timeout_seconds: Seconds = 3.0
    """Time for a connection to a bookie. Then it counts as failed."""
    metadata_timeout_seconds: Seconds = 10.0
    """Time for ZooKeeper's answer. Then the call fails."""
    metadata_session_timeout_seconds: Seconds = 10.0
    """Time that ZooKeeper keeps a dead client's locks."""
    client_name: str = ""
    """Name in the bookies' logs. "": host and process id."""
    speculative_read_delay_ms: Milliseconds = 500
    """Time until a read asks the next replica too, and that a read of the LAC (last add confirmed) waits for all bookies. 0:
    only after a failure."""
    sticky_reads: bool = True
    """Keep reading from the last replica, which has the next entries in memory. False: take turns."""
    read_own_host_first: bool = False
    """Ask a replica on this host first."""
    delay_ensemble_change: bool = False
    """Replace a failed bookie only if an ack quorum needs it or it is read-only. False: at its first failure."""
    quarantine_seconds: SecondsOrNone = 10.0
    """Time that a failed bookie is avoided."""
    lost_bookie_delay_seconds: SecondsOrNone = 10.0
    """Time until idle writers replace an absent bookie; less than autorecovery's ``lost_bookie_delay_seconds`` +
    ``grace_seconds``."""
    placement_by_free_space: bool = False
    """Prefer bookies with more free space."""
    opportunistic_striping: bool = False
    """Create ledgers on fewer bookies than the ensemble size, down to a write quorum."""
    explicit_lac_interval_seconds: SecondsOrNone = 0.1
    """Time until an idle writer sends its LAC to bookies, so that readers see its last entry. At most 320 ledgers a second for
    each client."""
    frame_bytes: FrameBytes = 640 << 10
    """Bytes of appends in a frame, roughly. Large frames cost less per entry; small ones make single reads cheaper."""
    frames_in_flight_max: AtLeastOne = 8
    """Unacknowledged frames of a ledger. Further appends gather."""
    bytes_in_flight_max: AtLeastOne = 128 << 20
    """Bytes of unacknowledged entries of all writers (VD_JOURNAL: unsynced; guaranteed: without their whole write set);
    further appends wait. n busy ledgers get 1/(n+1) each."""
    sync_bytes: AtLeastOne = 16 << 20
    """Appended bytes between syncs of a VD_JOURNAL ledger; at most a quarter of ``bytes_in_flight_max``."""
    sync_interval_seconds: SecondsOrNone = 0.0
    """Time between syncs of a VD_JOURNAL ledger with unsynced entries. 0: no syncs by time."""
    bookie_stall_seconds: Seconds = 1.5
    """Time that a slow bookie may hold up appends. Then it is replaced, or without a replacement not waited for; if it takes
    nothing, its connection is cut."""
    tls_ca: str = ""
    """PEM file of the CA of bookies' certificates; then TLS only."""
    tls_certificate: str = ""
    """PEM file of the client's certificate, for bookies with ``tls_client_ca``."""
    tls_key: str = ""
    """PEM file of its key. "": in the certificate's file."""
    tls_roles: bool = False
    """Certificates need an extended key usage: a bookie's serverAuth, the client's own clientAuth. (Other usages alone are
    always refused.)"""
    shared_secret_file: str = ""
    """File with secrets, one a line, which bookie and client prove to each other. It is reread when it changes."""
    shared_secret_without_tls: bool = False
    """Accept a secret without TLS off loopback: it stops strangers who reach a port, but no relay on the way."""
    record_decisions: str = ""
    """Folder for the process's decisions, without payloads and passwords, for ``bookspark replay``; at most 2 GiB a process."""

    @property
    def bookie_bytes_queued_max(self) -> int:
        """Bytes queued for a bookie before its connection is cut: a quarter of ``bytes_in_flight_max``, or a frame. From half of
        it on, the bookie is behind, and appends wait for it."""
        return max(self.frame_bytes, self.bytes_in_flight_max // 4)


learn(ClientConfig)


def client_config(**options: Any) -> ClientConfig:
    """A ClientConfig of ``options``. Raises ConfigurationError, with the option's name, for an unknown option or a wrong
    value."""
    return make_config(ClientConfig, options)
