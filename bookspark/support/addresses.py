"""Addresses as text, ``host:port``.

Law: an IPv6 host stands in brackets (RFC 3986, 3.2.2), because colons are part of it. Each address that is printed, stored or
parsed goes through these functions.
"""

from __future__ import annotations

import ipaddress


def address_text(host: str, port: int | str) -> str:
    """``127.0.0.1:3181``, ``bookie-1:3181`` or ``[::1]:3181``."""
    return f"{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    """The host as it stands in an address or a URL."""
    return f"[{host}]" if ":" in host else host


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError for a text without a port, or with an IPv6 host without brackets."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: an IPv6 host stands in brackets")
    if not host or not (port.isascii() and port.isdecimal()):
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Is ``host`` reachable only from this machine?"""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
