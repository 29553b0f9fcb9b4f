"""Certificates of CAs that the tests make."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """A CA, and the files of the certificates that it issues."""

    def __init__(self, folder: Path, name: str = "ca", key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        self._folder = folder
        self._key_type = key_type
        self._ca = trustme.CA(key_type=key_type)
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str = "tls") -> tuple[Path, Path]:
        """The files of a new certificate for this machine, and of its key."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        made = self._ca.issue_cert("localhost", "127.0.0.1", key_type=self._key_type)
        certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def settings(self, name: str = "tls") -> dict[str, str]:
        """The settings of a server with a new certificate."""
        certificate, key = self.issue(name)
        return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}

    def client(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this CA, and shows that certificate."""
        # Not create_default_context, which the tests make once: they never change what it gives.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.file)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
