"""Real ZooKeepers with a single SASL user (DIGEST-MD5): with TLS only and required client certificates, or at an IPv6 address."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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


_SASL_ONLY = """
tickTime=1000
dataDir=./data
clientPort={port}
clientPortAddress=::1
authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider
sessionRequireClientSASLAuth=true
admin.enableServer=false
"""


def sasl_zookeeper(directory: Path, user: str, password: str) -> AbstractContextManager[str]:
    """A ZooKeeper without TLS at ``[::1]``, as ``secured_zookeeper``. It closes each session without SASL."""
    port = free_port()
    return _running(directory, _SASL_ONLY.format(port=port), user, password, f"[::1]:{port}")


@contextmanager
def secured_zookeeper(directory: Path, certificate: str, ca: str, user: str, password: str) -> Iterator[str]:
    """Yields its ``host:port`` before the server is up; clients wait for it."""
    port = free_port()
    settings = _SETTINGS.format(port=port, certificate=certificate, ca=ca)
    with _running(directory, settings, user, password, f"127.0.0.1:{port}") as where:
        yield where


@contextmanager
def _running(directory: Path, settings: str, user: str, password: str, where: str) -> Iterator[str]:
    directory.mkdir()
    (directory / "zoo.cfg").write_text(settings)
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
        yield where
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
