"""A real ZooKeeper with TLS only, required client certificates and a single SASL user (DIGEST-MD5)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bookspark.store.metadata.zookeeper.embedded import _jars
from bookspark.store.metadata.zookeeper.java import find_java
from tests.ports import free_port

_SETTINGS = """
tickTime=1000
dataDir=./data
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={certificate}
ssl.keyStore.type=PEM
ssl.trustStore.location={ca}
ssl.trustStore.type=PEM
ssl.clientAuth=need
ssl.hostnameVerification=false
authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
admin.enableServer=false
"""
_USERS = 'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_{user}="{password}"; }};\n'


@contextmanager
def secured_zookeeper(directory: Path, certificate: str, ca: str, user: str, password: str) -> Iterator[str]:
    """Yields its ``host:port`` before the server is up; clients wait for it."""
    directory.mkdir()
    port = free_port()
    (directory / "zoo.cfg").write_text(_SETTINGS.format(port=port, certificate=certificate, ca=ca))
    (directory / "users").write_text(_USERS.format(user=user, password=password))
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(find_java(), "-Xmx192m", "-Djava.security.auth.login.config=users"),
                *("-Dorg.apache.logging.log4j.level=WARN", "-cp", os.pathsep.join(_jars())),
                *("org.apache.zookeeper.server.ZooKeeperServerMain", "./zoo.cfg"),
            ],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
