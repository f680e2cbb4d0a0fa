"""Means of a stranger: starts of frames, the first bytes of TLS, connections; and how a bookie is seen meanwhile."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import subprocess
import sys
import urllib.request

import pytest

from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, PREFIX_START
from tests.awaiting import SECONDS_MAX

BATCH = PREFIX_START[:8] + bytes(BODY_LENGTH_OFFSET - 8) + struct.pack("<q", (16 << 20) - 4096)
"""Start of a batch frame of nearly 16 MiB."""


def hello_of_tls():
    """The first bytes of a TLS client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(coming, going).do_handshake()
    return going.read()


def figure_at(address, name):
    """A figure of the bookie whose metrics are at ``address``."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS_MAX) as page:
        [value] = re.findall(rf"^bookspark_bookie_{name}{{.*}} (\S+)$", page.read().decode(), re.M)
    return float(value)


def connected(address, timeout=SECONDS_MAX):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout)


def alive(directory, *options):
    words = [sys.executable, "-m", "bookspark", "bookie", "alive", "--directory", directory, *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX)
