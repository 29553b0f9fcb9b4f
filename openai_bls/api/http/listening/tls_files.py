"""TLS of /v1 from files: a certificate, its key and the CAs of clients, read again when they change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from openai_bls.core.keys.watched_files import WatchedFiles
from openai_bls.core.settings import OpenAiBlsSettings

logger = logging.getLogger(__name__)


class TlsError(ValueError):
    """Files that make no TLS; the message is one sentence."""


class TlsFiles:
    """Context of new connections, by the files as they are now.

    Raises:
        TlsError: a file cannot be used.
    """

    def __init__(self, settings: OpenAiBlsSettings) -> None:
        self._settings = settings
        self._watched = WatchedFiles(
            Path(file) for file in (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs) if file
        )
        self._context = _server_context(settings)

    @classmethod
    def of(cls, settings: OpenAiBlsSettings) -> TlsFiles | None:
        """The files that the settings name; None without a certificate.

        Raises:
            TlsError: a file cannot be used, or there is one without a certificate.
        """
        if settings.ssl_certfile:
            return cls(settings)
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(settings, name):
                raise TlsError(f"{name} needs ssl_certfile, the certificate of /v1")
        return None

    def context(self) -> ssl.SSLContext:
        """The context for a connection that begins now; broken files change nothing."""
        if self._watched.changed():
            try:
                self._context = _server_context(self._settings)
            except TlsError as error:
                logger.error("the certificate of /v1 stays as it is: %s", error)
            else:
                logger.info("the certificate of /v1 was read again from %s", self._settings.ssl_certfile)
        return self._context


def _server_context(settings: OpenAiBlsSettings) -> ssl.SSLContext:
    certificate, key, authorities = settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs
    _require(certificate, "CERTIFICATE")
    _require(key or certificate, "PRIVATE KEY")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key or None, password=_refuse_encrypted(key or certificate))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key in {key or certificate} is not that of the certificate in {certificate}") from None
        raise TlsError(f"{certificate} and {key or certificate} cannot be used: {error.reason or error}") from None
    except OSError as error:
        # Gone since it was looked at.
        raise TlsError(f"{certificate} and {key or certificate} cannot be read: {error.strerror}") from None
    if authorities:
        _require(authorities, "CERTIFICATE")
        try:
            context.load_verify_locations(authorities)
        except OSError as error:
            raise TlsError(f"{authorities} cannot be used: {getattr(error, 'reason', None) or error}") from None
        # Not required: probes have none, and one that is missing gets an answer that says so. A wrong one gets none.
        context.verify_mode = ssl.CERT_OPTIONAL
        # One whose CA is taken away must not go on with a session from before.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _require(file: str, what: str) -> None:
    """`file` can be read and has a block of PEM with that name."""
    try:
        text = Path(file).read_bytes()
    except OSError as error:
        raise TlsError(f"{file} cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in text or what.encode() + b"-----" not in text:
        raise TlsError(f"{file} holds no {what.lower()} in PEM form")


def _refuse_encrypted(file: str) -> Callable[[], str]:
    """Password of a key, which nobody has: OpenSSL would ask for it on the terminal."""

    def password() -> str:
        raise TlsError(f"the key in {file} is encrypted: decrypt it, and keep others from reading the file")

    return password
