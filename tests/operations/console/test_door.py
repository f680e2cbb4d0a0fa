"""Access to a console: host names and tokens."""

from __future__ import annotations

import base64
import socket

import pytest
from starlette.datastructures import Headers

from bookspark.errors import ConfigurationError
from bookspark.operations.console.server import Door

TOKEN = "0123456789abcdef"


def asked(**headers: str) -> Headers:
    return Headers({"Host": "127.0.0.1:8190", **headers})


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8190",
        "[::1]:8190",
        "[::1]",
        "localhost:8190",
        "LocalHost",
        socket.gethostname(),
        "10.0.0.1:1",
    ],
)
def test_console_answers_to_its_own_names(host):
    assert Door("127.0.0.1", "").refused(asked(Host=host)) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8190", "", "127.0.0.1.evil.example", "localhost.evil"])
def test_foreign_host_name_is_refused(host):
    page = Door("127.0.0.1", "").refused(asked(Host=host))
    assert page is not None and page.status_code == 421


def test_open_address_requires_a_token_and_every_token_of_the_file_works(tmp_path):
    with pytest.raises(ConfigurationError, match="--token-file"):
        Door("0.0.0.0", "")
    file = tmp_path / "tokens"
    file.write_text(f"another-{TOKEN}\n{TOKEN}\n")
    door = Door("0.0.0.0", str(file))
    assert door.refused(asked(Authorization=basic(TOKEN))) is None
    assert door.refused(asked(Authorization=basic(f"another-{TOKEN}"))) is None


@pytest.mark.parametrize(
    "authorization",
    ["", basic(""), basic(TOKEN[:-1]), basic(TOKEN + "0"), f"Bearer {TOKEN}", "Basic é", "Basic !!", basic("é" * 16)],
)
def test_request_without_the_right_token_is_refused(tmp_path, authorization):
    file = tmp_path / "tokens"
    file.write_text(TOKEN)
    page = Door("127.0.0.1", str(file)).refused(asked(Authorization=authorization))
    assert page is not None and page.status_code == 401
    assert page.headers["WWW-Authenticate"].startswith("Basic")
    assert TOKEN not in bytes(page.body).decode() + str(page.headers)


@pytest.mark.parametrize("content", ["", "short\n"])
def test_empty_or_short_token_is_refused(tmp_path, content):
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="token_file"):
        Door("127.0.0.1", str(file))
