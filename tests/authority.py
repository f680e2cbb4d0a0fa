"""Certificates and secrets for tests."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path

_serial = count(1)


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def private(path, text):
    """A file of this user alone; returns its path."""
    path.touch(0o600)
    path.write_text(text)
    return str(path)


class Authority:
    """A CA; ``certificate(name, host)`` is a PEM file with a key and a signed certificate for that address. ``days``: until
    they end; -1: they ended a day ago. ``usage``: the extended key usage, such as ``serverAuth``."""

    def __init__(self, directory, days=365):
        self._directory = directory
        directory.mkdir()
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        request, extension = directory / "ca.csr", directory / "ca.ext"
        options = ("-nodes", "-subj", "/CN=test CA", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("req", "-new", *options, "-keyout", self._key, "-out", request)
        extension.write_text(
            "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n"
        )
        signed = ("-signkey", self._key, "-extfile", extension, "-out", self.file)
        openssl("x509", "-req", "-days", days, "-in", request, *signed)

    def certificate(self, name, host="127.0.0.1", days=365, usage=""):
        request, signed, extension = (self._directory / f"{name}.{end}" for end in ("csr", "crt", "ext"))
        both = self._directory / f"{name}.pem"
        options = ("-nodes", "-subj", f"/CN={name}", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("req", *options, "-keyout", both, "-out", request)
        wanted = f"extendedKeyUsage={usage}\n" if usage else ""
        extension.write_text(f"subjectAltName=IP:{host}\nauthorityKeyIdentifier=keyid\n{wanted}")
        authority = ("-CA", self.file, "-CAkey", self._key, "-set_serial", next(_serial), "-extfile", extension)
        openssl("x509", "-req", "-days", days, "-in", request, *authority, "-out", signed)
        both.write_bytes(both.read_bytes() + signed.read_bytes())
        return str(both)


def locked(certificate, into):
    """A copy of a PEM file with key and certificate, ``into`` a file, its key under a passphrase. Returns the path."""
    openssl("pkey", "-in", certificate, "-aes256", "-passout", "pass:secret", "-out", into)
    text = Path(certificate).read_text()
    return private(into, into.read_text() + text[text.index("-----BEGIN CERTIFICATE-----") :])
