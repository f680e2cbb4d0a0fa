"""Who may ask, and what every answer says of itself.

Law: off loopback nobody is answered without the token; it is the password of HTTP's own dialogue (Basic, any name), so browsers
ask for it and send it to this place alone. A request whose header Host is a name that this console does not have is refused: a
page of a stranger, whose name was made to lead here, reads nothing. No page may be framed, or load or run anything but the
console's own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from email.message import Message
from http import HTTPStatus

from bookspark.errors import ConfigurationError
from bookspark.store.bookie.bookie_config import is_loopback
from bookspark.store.wire.security import read_secrets
from bookspark.support.metrics.web import Page

TOKEN_BYTES_MIN = 16
"""A shorter token could be found by trying."""

HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class Door:
    """The door of a console that listens at ``host``."""

    def __init__(self, host: str, token_file: str) -> None:
        """``token_file``: its lines are the tokens; "": there are none. Raises ConfigurationError if they can't be read or are
        too short, or if there are none and ``host`` is not loopback."""
        self._tokens = read_secrets(token_file, "token_file")
        if any(len(one) < TOKEN_BYTES_MIN for one in self._tokens):
            raise ConfigurationError(
                f"token_file {token_file} has a token of fewer than {TOKEN_BYTES_MIN} characters; "
                f"make one: openssl rand -hex 16 > {token_file}"
            )
        if not self._tokens and not is_loopback(host):
            raise ConfigurationError(
                f"at {host} others could see the cluster: give --token-file FILE, or listen at 127.0.0.1 and come by a tunnel "
                "(ssh -L)"
            )
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    def refused(self, headers: Message) -> Page | None:
        """Why the request is not answered, as a page; None if it is."""
        if not self._is_named(headers.get("Host", "")):
            return _words(HTTPStatus.MISDIRECTED_REQUEST, "this console has another name: ask for its address")
        if self._tokens and not self._knows(headers.get("Authorization", "")):
            ask = ("WWW-Authenticate", 'Basic realm="Bookspark console: the token is the password", charset="UTF-8"')
            return _words(HTTPStatus.UNAUTHORIZED, "which token? Any name, and the token as password", ask)
        return None

    def _is_named(self, host: str) -> bool:
        name = host.strip().lower()
        if not name.endswith("]"):
            head, colon, port = name.rpartition(":")
            name = head if colon and port.isascii() and port.isdigit() else name
        try:
            # Nobody makes a number lead elsewhere.
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names
        return True

    def _knows(self, authorization: str) -> bool:
        kind, _, told = authorization.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            password = base64.b64decode(told.strip(), validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
        # Each is compared, so the time tells nothing.
        return sum(hmac.compare_digest(password, one) for one in self._tokens) > 0


def _words(status: HTTPStatus, words: str, *headers: tuple[str, str]) -> Page:
    return Page(status, f"{words}\n".encode(), headers=(*HEADERS, *headers))
