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
    """Seconds that appends may go without progress. Then unacknowledged appends and the ledger's handle fail."""
    answer_timeout_seconds: Seconds = 5.0
    """Seconds that a bookie may take to answer. Then a read asks the next replica, and a writer another bookie."""
    recovery_timeout_seconds: Seconds = 60.0
    """Seconds that a ledger's recovery may take. Then it fails with LedgerRecoveryError and can be retried."""
    connect_timeout_seconds: Seconds = 3.0
    """Seconds that a connection to a bookie may take. Then the bookie counts as failed."""
    metadata_timeout_seconds: Seconds = 10.0
    """Seconds that ZooKeeper may take to answer. Then the call fails with MetadataStoreError."""
    metadata_session_timeout_seconds: Seconds = 10.0
    """Seconds that ZooKeeper keeps a dead client's locks, such as an autorecovery process's election or task."""
    client_name: str = ""
    """Name in the bookies' logs. "": host and process id."""
    speculative_read_delay_ms: Milliseconds = 500
    """Milliseconds until a read asks the next replica too. 0: only after a failure. A read of the LAC (last add confirmed)
    waits that long for all bookies."""
    sticky_reads: bool = True
    """True: keep reading from the last replica, which has the next entries in memory. False: take turns."""
    read_own_host_first: bool = False
    """True: ask a replica on this host first."""
    delay_ensemble_change: bool = False
    """True: replace a failed bookie only if an ack quorum needs it or it is read-only. False: at its first failure."""
    quarantine_seconds: SecondsOrNone = 10.0
    """Seconds that a failed bookie is avoided: chosen only if there is no other, and read from last."""
    lost_bookie_delay_seconds: SecondsOrNone = 10.0
    """Seconds until an absent bookie counts as lost. Then writers without appends replace it too; less than autorecovery's
    ``lost_bookie_delay_seconds`` and ``grace_seconds`` together."""
    placement_by_free_space: bool = False
    """True: prefer bookies with more free space."""
    opportunistic_striping: bool = False
    """True: create a ledger with fewer bookies than its ensemble size, down to a write quorum."""
    explicit_lac_interval_seconds: SecondsOrNone = 0.1
    """Seconds until an idle writer sends bookies its LAC, which makes its last entry visible to readers. At most 320 ledgers a
    second for each client."""
    frame_bytes: FrameBytes = 640 << 10
    """Bytes of pending appends in a frame, roughly. Larger frames cost less per entry; smaller frames make single reads
    cheaper."""
    frames_in_flight_max: AtLeastOne = 8
    """Unacknowledged frames of a ledger. Further appends gather."""
    bytes_in_flight_max: AtLeastOne = 128 << 20
    """Bytes that all writers of the client keep: entries without acknowledgement (VD_JOURNAL: without sync; guaranteed: without
    their whole write set). n busy ledgers get 1/(n+1) each. Beyond it, appends wait."""
    sync_bytes: AtLeastOne = 16 << 20
    """Appended bytes between two syncs of a VD_JOURNAL ledger; at most a quarter of ``bytes_in_flight_max``."""
    sync_interval_seconds: SecondsOrNone = 0.0
    """Seconds between two syncs of a VD_JOURNAL ledger with unsynced entries. 0: no syncs by time."""
    bookie_stall_seconds: Seconds = 1.5
    """Seconds that a slow bookie may hold up appends that others take. Then it is replaced, or not waited for if there is no
    other. If it takes nothing for that long, its connection is cut."""
    tls_ca: str = ""
    """PEM file of the CA of bookies' certificates. The client then speaks TLS only."""
    tls_certificate: str = ""
    """PEM file of the client's certificate, for bookies with ``tls_client_ca``."""
    tls_key: str = ""
    """PEM file of its key. "": in the certificate's file."""
    tls_roles: bool = False
    """True: a bookie's certificate must have the extended key usage serverAuth, the client's own clientAuth, so neither passes
    for the other. (A certificate with other usages alone is refused with False too.)"""
    shared_secret_file: str = ""
    """File with secrets, one a line. A bookie has to prove one of them, and the client proves the same one to the bookie. It is
    reread when it changes."""
    shared_secret_without_tls: bool = False
    """True: accept a secret without TLS off loopback. A secret then stops strangers who reach a port, but no relay on the way."""
    record_decisions: str = ""
    """Folder for the decisions of the process, without payloads and passwords, for ``bookspark replay``. "": none. At most 2
    GiB a process."""

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
