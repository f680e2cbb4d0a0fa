"""Certificates for tests."""

from __future__ import annotations

import subprocess
from itertools import count

_serial = count(1)


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA; ``certificate(name, host)`` is a PEM file with a key and a signed certificate for that address."""

    def __init__(self, directory):
        self._directory = directory
        directory.mkdir()
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        options = ("-nodes", "-days", 2, "-subj", "/CN=test CA", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        extension = ("-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *options, *extension, "-keyout", self._key, "-out", self.file)

    def certificate(self, name, host="127.0.0.1"):
        request, signed, extension = (self._directory / f"{name}.{end}" for end in ("csr", "crt", "ext"))
        both = self._directory / f"{name}.pem"
        options = ("-nodes", "-subj", f"/CN={name}", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("req", *options, "-keyout", both, "-out", request)
        extension.write_text(f"subjectAltName=IP:{host}\nauthorityKeyIdentifier=keyid\n")
        authority = ("-CA", self.file, "-CAkey", self._key, "-set_serial", next(_serial), "-extfile", extension)
        openssl("x509", "-req", "-days", 2, "-in", request, *authority, "-out", signed)
        both.write_bytes(both.read_bytes() + signed.read_bytes())
        return str(both)
