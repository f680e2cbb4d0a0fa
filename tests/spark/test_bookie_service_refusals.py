"""A bookie service that can't start says why in a single line and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookspark.errors import BookieError, BookKeeperError, ConfigurationError, MetadataStoreError
from bookspark.servers.daemon.directories import lock_holder
from bookspark.spark.bookies.bookie_service import BookieService
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]


def refusal(spark: SparkSession, kind: type[BookKeeperError], **options: Any) -> str:
    service = BookieService(spark, **{"bookies": 1, **options})
    with pytest.raises(kind) as caught:
        service.start()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_and_impossible_options_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="unknown BookieService option 'lease_secs'; did you mean 'lease_seconds'"
    ):
        BookieService(spark, directories=[tmp_path], lease_secs=1)
    with pytest.raises(ConfigurationError, match="name one per disk"):
        BookieService(spark)
    with pytest.raises(ConfigurationError, match="leave port out"):
        BookieService(spark, directories=[tmp_path], port=3181)
    with pytest.raises(ConfigurationError, match="lease_seconds"):
        BookieService(spark, directories=[tmp_path], lease_seconds="long")


def test_unwritable_root_is_refused(spark: SparkSession, tmp_path: Path, chroot: str) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "file"
    assert f"directory {root}/bookie-0 is not writable (Not a directory)" in refusal(
        spark, BookieError, directories=[root], zookeeper=chroot
    )
    assert f"ZooKeeper's directory {root}/zookeeper can't be written" in refusal(
        spark, ConfigurationError, directories=[root]
    )


def test_home_of_another_cluster_is_refused_and_left_unlocked(spark: SparkSession, tmp_path: Path, chroot: str) -> None:
    with BookieService(spark, bookies=1, directories=[tmp_path], zookeeper=chroot) as service:
        [identity] = service.bookies
    assert f"belongs to {identity} of another cluster" in refusal(
        spark, BookieError, directories=[tmp_path], zookeeper=chroot + "-other"
    )
    assert lock_holder(str(tmp_path / "bookie-0")) is None


def test_unreachable_zookeeper_is_named_in_the_refusal(spark: SparkSession, tmp_path: Path) -> None:
    port = free_port()
    assert f"127.0.0.1:{port}" in refusal(
        spark, MetadataStoreError, directories=[tmp_path], zookeeper=f"127.0.0.1:{port}"
    )
