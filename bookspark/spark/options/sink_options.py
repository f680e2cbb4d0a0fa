"""Options of writes by ``format("bookspark")``, as frozen values.

Law: an unknown option, or a wrong value, is a ConfigurationError on the driver before any row is written.
``given_options`` has the common options of reads and writes.

Sink
    ``log`` (required): name of the log. A write creates a missing log with these options, which no later write changes
    (``bookspark log alter`` changes some): ``ensembleSize``, ``writeQuorum``, ``ackQuorum`` (3, 3, 2); ``digestType`` (CRC32C);
    ``ledgerType`` (PD_JOURNAL; with VD_JOURNAL each task syncs once, before it ends); ``replication`` (best_effort);
    ``rowFormat`` (``value``, or ``arrow`` for all columns); ``compression`` (``none``, ``zstd``, ``zstd_dictionary``);
    ``fewerCopies`` (true: while only an ack quorum of bookies is writable, ledgers get their other copies later).
    ``ledgerRollBytes`` (1 GiB), ``ledgerRollSeconds`` (3600): size and age at which a data ledger is closed. ``statistics``:
    columns of an Arrow log by which reads with ``where`` skip rows (``a,b``, or ``none``; default: the first 16 suitable).
Batch write
    ``txnAppId`` (a text) and ``txnVersion`` (a number from 0), as in Delta: a write is skipped if the application's last
    write in the log has this version and the same rows, in any order, so a write in ``foreachBatch`` comes once. With other
    rows, or a lower version, it is refused: a new Spark checkpoint, which counts from 0 again, needs its own ``txnAppId``.
    ``acceptReplay``: a version that the log has with other, random rows; the log's rows count. A write without rows leaves no
    version. A log remembers the last 1,000 queries and applications (``QUERIES_MAX``).
Streaming sink
    ``follows``: id of the streaming query whose log this query takes over, if new to the log. ``acceptReplay``: number of a
    micro-batch that the log has with other, random rows; the log's rows count.
    ``checkpointUrl``: where the driver reads the query's Spark checkpoint, as ``pyarrow.fs.FileSystem.from_uri`` takes it
    (``s3://key:secret@bucket/path``), if credentials in its environment do not suffice. ``compareCheckpoint`` (true): false
    lets a query write whose Spark checkpoint the driver can't read; rows of a copied or set back checkpoint or a renamed
    source folder may then come twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from bookspark.errors import ConfigurationError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import LogName
from bookspark.logs.rows.data_ledgers import RollPolicy
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.commits import TXN
from bookspark.protocol.logs.log_options import Compression, LogOptions, RowFormat
from bookspark.spark.options.given_options import SPARK_OPTIONS, GivenOptions, cluster
from bookspark.support.arguments import AtLeastOne, EntryId, Rule

_AppId = Annotated[str, Rule("a text of 1 to 300 characters", lambda text: 0 < len(text) <= 300)]


def _columns(text: str) -> tuple[str, ...]:
    """The named columns. Raises ValueError."""
    names = tuple(name.strip() for name in text.split(","))
    if names == ("none",):
        return ()
    if not all(names) or len(set(names)) < len(names):
        raise ValueError
    return names


@dataclass(frozen=True)
class SinkOptions:
    log: LogAddress
    chosen: Mapping[str, Any]
    """The given fields of LogOptions. An existing log keeps its other options."""
    roll: RollPolicy
    follows: str = ""
    """Id of the streaming query whose log this query takes over, if it is new to the log; empty: none."""
    accept_replay: int | None = None
    """Number of the micro-batch that counts as the one in the log, whatever its rows are."""
    checkpoint: str = ""
    checkpoint_url: str = ""
    """Where the driver reads the Spark checkpoint; empty: at its place."""
    compare_checkpoint: bool = True
    """Compare the Spark checkpoint with the log; else it is not read."""
    query_name: str = ""
    txn_app_id: str = ""
    txn_version: int = 0
    statistics: tuple[str, ...] | None = None
    """The columns with statistics in commits; None: default."""

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SinkOptions:
        """The options in ``given``, as Spark passes them. ``zookeeper``: the session's cluster. Raises ConfigurationError."""
        options = GivenOptions(given)
        log = options.judged("log", LogName)
        chosen: dict[str, Any] = {
            "ensemble_size": options.judged("ensembleSize", AtLeastOne),
            "write_quorum": options.judged("writeQuorum", AtLeastOne),
            "ack_quorum": options.judged("ackQuorum", AtLeastOne),
            "digest_type": options.judged("digestType", DigestType),
            "ledger_type": options.judged("ledgerType", LedgerType),
            "replication": options.judged("replication", Replication),
            "row_format": options.judged("rowFormat", RowFormat),
            "compression": options.judged("compression", Compression),
            "fewer_copies": options.judged("fewerCopies", bool),
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        default = RollPolicy()
        roll = RollPolicy(
            options.judged("ledgerRollBytes", AtLeastOne) or default.bytes_max,
            options.judged("ledgerRollSeconds", AtLeastOne) or default.seconds_max,
        )
        follows = options.text("follows") or ""
        if follows.startswith(TXN):
            raise ConfigurationError(
                f"option follows is the id of a streaming query, and {follows!r} is an application of batch writes, whose "
                "versions stay in their lane: leave the option out, and the query gets a lane of its own"
            )
        txn_app_id, txn_version = options.judged("txnAppId", _AppId) or "", options.judged("txnVersion", EntryId)
        if bool(txn_app_id) != (txn_version is not None):
            raise ConfigurationError(
                "options txnAppId and txnVersion go together: an application, and the number of its write"
            )
        checkpoint, query_name = (options.text(name) or "" for name in SPARK_OPTIONS)
        address, password = cluster(options, zookeeper)
        write = cls(
            log=LogAddress(address, log or "", password),
            chosen=chosen,
            roll=roll,
            follows=follows,
            accept_replay=options.judged("acceptReplay", EntryId),
            checkpoint=checkpoint,
            checkpoint_url=options.text("checkpointUrl") or "",
            compare_checkpoint=options.judged("compareCheckpoint", bool) is not False,
            query_name=query_name,
            txn_app_id=txn_app_id,
            txn_version=txn_version or 0,
            statistics=options.take("statistics", _columns, "names of columns like a,b, or none"),
        )
        options.finish()
        if log is None:
            raise ConfigurationError("which log? A write needs option log, the name of the log to append to")
        # Contradictory options raise here, not after the first rows.
        LogOptions(**chosen)
        return write

    def for_stream(self) -> SinkOptions:
        """Return these options. Raises ConfigurationError for options of batch writes only."""
        if self.txn_app_id:
            raise ConfigurationError(
                "options txnAppId and txnVersion are for batch writes: a stream's micro-batches come once without them; leave "
                "them out"
            )
        return self

    def for_batch(self) -> SinkOptions:
        """Return these options. Raises ConfigurationError for options of streams only."""
        only = {
            "follows": self.follows,
            "acceptReplay": None if self.txn_app_id else self.accept_replay,
            "checkpointLocation": self.checkpoint,
            "checkpointUrl": self.checkpoint_url,
            "compareCheckpoint": None if self.compare_checkpoint else False,
            "queryName": self.query_name,
        }
        for name, value in only.items():
            if value not in (None, ""):
                raise ConfigurationError(
                    f"option {name} is for streams (df.writeStream): a batch write takes over no log, and each run of it appends "
                    "its rows again; leave the option out"
                )
        return self
