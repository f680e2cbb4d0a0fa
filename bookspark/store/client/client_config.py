"""A client's options: one frozen value, from keyword arguments or from the ``[client]`` table of a ``bookspark.toml``.

Units are last in the names; bounds are part of the types. ``conf/bookspark.toml`` shows each option with its default, and a test
keeps the two the same.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.store.metadata.records.documents import learn
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.support.arguments import AtLeastOne, Config, Seconds, SecondsOrNone, make_config

Milliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=1 << 53)]
FrameBytes = Annotated[int, Meta(ge=1, le=FRAME_BYTES_MAX // 2)]
"""At most half of FRAME_BYTES_MAX: digests are not counted, and may take almost as many bytes as the payloads."""


class ClientConfig(Config, frozen=True, kw_only=True):
    """Everything that a client is told. Every blocking call ends within one of these times."""

    option_kind = "client option"

    add_timeout_seconds: Seconds = 30.0
    """How long appends may go without progress, in seconds. After that, appends that no ack quorum acknowledged fail, and the
    ledger's handle with them."""
    answer_timeout_seconds: Seconds = 5.0
    """How long a bookie may take to answer, in seconds. After that, a read asks the next replica, and a writer looks for another
    bookie."""
    recovery_timeout_seconds: Seconds = 60.0
    """How long the recovery of a ledger may take, in seconds. After that, it fails with LedgerRecoveryError and can be tried
    again."""
    connect_timeout_seconds: Seconds = 3.0
    """How long a connection to a bookie may take, in seconds. After that, the bookie counts as failed."""
    metadata_timeout_seconds: Seconds = 10.0
    """How long ZooKeeper may take to answer, in seconds. After that, the call fails with MetadataStoreError."""
    metadata_session_timeout_seconds: Seconds = 10.0
    """How long ZooKeeper keeps the locks of a client that died, in seconds. Such a lock is an autorecovery process's election or
    task."""
    client_name: str = ""
    """The client's name in the logs of bookies. "": its host and process id."""
    speculative_read_delay_ms: Milliseconds = 500
    """How long a read waits for a replica before it also asks the next one, in milliseconds. 0: until the replica has failed. A
    read of the LAC (last add confirmed) waits that long for all bookies, and then takes the answers that there are."""
    sticky_reads: bool = True
    """True: go on reading from the replica that delivered last, which has the next entries in memory. False: ask each replica in
    turn."""
    read_own_host_first: bool = False
    """True: ask a replica on this host before the others."""
    delay_ensemble_change: bool = False
    """True: replace a failed bookie only when an ack quorum can't be reached without it, or when it is read-only. False: replace
    it at its first failure."""
    quarantine_seconds: SecondsOrNone = 10.0
    """How long a bookie that failed is avoided, in seconds. It is chosen for an ensemble only if there is no other, and read
    from last."""
    placement: str = "random"
    """Which bookies make an ensemble: random, rack_aware, one_per_host, or one_per_<label> with a label that bookies have."""
    racks_min: AtLeastOne = 1
    """Only with rack_aware: the fewest racks that the copies of an entry may lie on. A ledger that can't have that is not
    created."""
    placement_by_free_space: bool = False
    """True: choose bookies with more free space more often."""
    opportunistic_striping: bool = False
    """True: create a ledger although there are fewer bookies than its ensemble size, as long as there is a write quorum."""
    explicit_lac_interval_seconds: SecondsOrNone = 0.1
    """How long an idle writer waits before it tells the bookies that its last entry is confirmed, in seconds. Readers see that
    entry only then. A client tells at most 320 ledgers a second."""
    frame_bytes: FrameBytes = 640 << 10
    """About how many bytes of pending appends go into one frame. Larger frames cost less for each entry. Smaller frames make it
    cheaper to read a single entry."""
    frames_in_flight_max: AtLeastOne = 8
    """How many frames of one ledger may wait for their acknowledgement. Further appends gather until one is acknowledged."""
    bytes_in_flight_max: AtLeastOne = 64 << 20
    """How many bytes the writer of one ledger keeps. It keeps entries that are not acknowledged, of a VD_JOURNAL ledger those
    not synced, of a guaranteed ledger those not on their whole write set. Beyond it, appends wait."""
    client_bytes_in_flight_max: AtLeastOne = 256 << 20
    """How many bytes the writers of all ledgers of the client keep. A ledger gets no more than it leaves free, so n busy ones get
    1/(n+1) of it each. Beyond it, appends wait."""
    appends_per_second_max: CountOrNone = 0
    """How many entries a second the client appends, over all its ledgers, which share it equally. Beyond it, appends wait. 0: no
    limit."""
    append_bytes_per_second_max: CountOrNone = 0
    """How many bytes a second the client appends, over all its ledgers, which share it equally. Beyond it, appends wait. 0: no
    limit."""
    sync_bytes: AtLeastOne = 16 << 20
    """A VD_JOURNAL ledger is synced each time that this many bytes were appended. At most half of ``bytes_in_flight_max``."""
    sync_interval_seconds: SecondsOrNone = 0.0
    """Time between two syncs of a VD_JOURNAL ledger that has something to sync, in seconds. 0: no syncs by time."""
    bookie_bytes_queued_max: AtLeastOne = 32 << 20
    """When more bytes than this wait to be sent to a bookie, its connection is cut; what is still needed is sent again later.
    From half of it on, appends wait for the bookie, for ``bookie_stall_seconds`` at most if the others are quicker. At least
    ``frame_bytes``."""
    bookie_stall_seconds: Seconds = 1.5
    """How long a bookie may hold appends up that others take, in seconds. After that, it is replaced, or not waited for if there
    is no other. If it takes in nothing for that long, its connection is cut."""
    tls_ca: str = ""
    """PEM file of the CA that signs bookies' certificates. With it the client speaks nothing but TLS."""
    tls_certificate: str = ""
    """PEM file of the client's own certificate, for bookies that have ``tls_client_ca``."""
    tls_key: str = ""
    """PEM file of the certificate's key. "": the key is in the file of the certificate."""
    shared_secret_file: str = ""
    """File with the secret that bookies with a ``shared_secret_file`` ask for. Of several, one a line, the first one that a
    bookie knows is taken. The file is read again when it changes."""
    record_decisions: str = ""
    """Folder into which the process records what its decision machines were given and what they answered, for ``bookspark
    replay``. "": nothing is recorded. A process keeps 2 GiB at most. The record has no payloads and no passwords."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bookie_bytes_queued_max < self.frame_bytes:
            raise ConfigurationError(
                f"bookie_bytes_queued_max {self.bookie_bytes_queued_max} has to be at least frame_bytes ({self.frame_bytes}): "
                "otherwise no frame could be sent"
            )
        if self.sync_bytes > self.bytes_in_flight_max // 2:
            raise ConfigurationError(
                f"sync_bytes {self.sync_bytes} has to be at most half of bytes_in_flight_max "
                f"({self.bytes_in_flight_max}): what is not synced is kept, and appends would wait for room that no sync makes"
            )


learn(ClientConfig)


def client_config(**options: Any) -> ClientConfig:
    """A ClientConfig of ``options``. Raises ConfigurationError, with its name, for an option that is unknown or can't be used."""
    return make_config(ClientConfig, options)
