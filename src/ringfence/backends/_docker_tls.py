"""TLS to an engine: certificates in files that are named as docker names them, and its faults."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

__all__ = ("Tls", "find_fault", "look_for_fault", "read_certificates")

_VERIFY_FAULTS = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is signed by itself alone, and ca.pem does not have it",
    19: "its certificate comes from an authority that ca.pem does not have",
    20: "its certificate comes from an authority that ca.pem does not have",
    21: "its certificate comes from an authority that ca.pem does not have",
    62: "its certificate is for another host name",
    64: "its certificate is for another address",
}
"""By the number that OpenSSL has for them."""

_OF_OURS = {
    "CERTIFICATE_EXPIRED": "our certificate (cert.pem) has expired",
    "UNKNOWN_CA": "our certificate (cert.pem) comes from an authority that it does not know",
    "BAD_CERTIFICATE": "it does not take our certificate (cert.pem)",
    "CERTIFICATE_UNKNOWN": "it does not take our certificate (cert.pem)",
    "UNSUPPORTED_CERTIFICATE": "it does not take our certificate (cert.pem)",
}
_NONE_SHOWN = "it wants a certificate of ours, and there is none (cert.pem and key.pem)"
_ALERTS = ("ALERT_", "HANDSHAKE_FAILURE")


@dataclass(frozen=True)
class Tls:
    """How an engine is spoken to over TLS.

    Attributes:
        context: What checks it, and shows our certificate.
        has_certificate: Whether there is one to show.
    """

    context: ssl.SSLContext
    has_certificate: bool = False


def read_certificates(place: Path | None, *, verify: bool = True) -> Tls:
    """Return what the files of a directory make.

    Args:
        place: Where `ca.pem`, `cert.pem` and `key.pem` are, if they are. Without `ca.pem`, or
            without a directory, the authorities that this machine trusts are taken.
        verify: Whether the engine has to show that it is the one that was named.

    Raises:
        ConfigError: A file can't be read, or is no certificate.
    """
    authorities = None if place is None else place / "ca.pem"
    own = None if place is None else place / "cert.pem"
    try:
        has_authorities = authorities is not None and authorities.exists()
        context = ssl.create_default_context(cafile=str(authorities) if has_authorities else None)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if own is None or not own.exists():
            return Tls(context)
        context.load_cert_chain(str(own), str(own.with_name("key.pem")))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificates in {str(place)!r} can't be used: {error.strerror or error}",
            backend="container",
            hint="they are ca.pem, cert.pem and key.pem, as docker names them",
        ) from error
    return Tls(context, has_certificate=True)


def find_fault(error: BaseException, tls: Tls) -> str:
    """Return what of TLS an error came from, in words about the engine; empty if from none."""
    for cause in _chain(error):
        # The client library has an error of the same kind around it, with nothing in it.
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_code"):
            return _VERIFY_FAULTS.get(cause.verify_code, f"its certificate: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError) and (reason := getattr(cause, "reason", "")):
            return _fault_of(reason, tls)
    return ""


async def look_for_fault(address: tuple[str, int], tls: Tls, seconds: float) -> str:
    """Return why an engine hangs up, in words about it; empty if TLS is not why.

    It says so once it has seen our certificate, and then resets a connection on which we have
    already asked for something, so that what it said may be gone: here nothing is asked.
    """
    writer = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(*address, ssl=tls.context)
            await reader.read(1)
    except OSError as error:  # a timeout is one too
        return find_fault(error, tls)
    finally:
        if writer is not None:
            writer.transport.abort()
    return ""


def _fault_of(reason: str, tls: Tls) -> str:
    if reason == "WRONG_VERSION_NUMBER":
        return "it speaks no TLS there"
    if not any(word in reason for word in _ALERTS):
        return f"TLS failed: {reason.lower().replace('_', ' ')}"
    if not tls.has_certificate:
        return _NONE_SHOWN
    for word, said in _OF_OURS.items():
        if reason.endswith(word):
            return said
    return f"it ended TLS: {reason.lower().replace('_', ' ')}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it came from."""
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (one.__cause__, one.__context__, *one.args)
        inner += (getattr(one, "certificate_error", None), getattr(one, "os_error", None))
        left += [found for found in inner if isinstance(found, BaseException)]
