"""Who may come in over HTTP, and where they knock."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ("HttpAccess", "listen", "parse_address", "read_tokens")

SHORTEST_TOKEN = 16
_MAX_TOKEN_FILE = 1 << 20
_BACKLOG = 1024


@dataclass(frozen=True)
class HttpAccess:
    """Who may come in.

    Attributes:
        tokens: Names by bearer token; without any, everybody who reaches the port may.
        hosts: Values of the Host header that are served beside this machine's own names, as
            `name` or `name:port`.
        origins: Values of the Origin header, which browsers send, that are served beside those of
            this machine, each whole: `https://name` or `http://name:port`.
        path: Where the endpoint is.
    """

    tokens: Mapping[str, str] | None = None
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    path: str = "/mcp"

    def __repr__(self) -> str:
        count = len(self.tokens or ())
        return (
            f"<HttpAccess {count} tokens, hosts={list(self.hosts)}, origins={list(self.origins)}>"
        )


def read_tokens(variable: str | None, file: str | None) -> dict[str, str]:
    """Return the tokens that a variable or a file holds, each with a name for its owner.

    Args:
        variable: The name of an environment variable that holds one.
        file: The path of a file with one in each line; empty lines and those that begin with `#`
            don't count.

    Raises:
        ConfigError: There is none, one is shorter than 16 characters or is not printable ASCII, or
            others may read the file.
    """
    tokens: list[str] = []
    if variable is not None:
        if not os.environ.get(variable):
            raise ConfigError(f"there is no variable {variable} with a token")
        tokens.append(os.environ[variable])
    if file is not None:
        tokens += _lines(file)
        if not tokens:
            raise ConfigError(f"{file} has no token in it")
    for number, token in enumerate(tokens, start=1):
        is_plain = token.isascii() and token.isprintable() and " " not in token
        if not is_plain or len(token) < SHORTEST_TOKEN:
            raise ConfigError(
                f"token {number} has fewer than {SHORTEST_TOKEN} characters, or some that are not "
                "printable ASCII",
                hint="make one with: openssl rand -hex 32",
            )
    return {token: f"token{number}" for number, token in enumerate(tokens, start=1)}


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"others may read {path}", hint=f"chmod 600 {path}")
            lines = file.read(_MAX_TOKEN_FILE).splitlines()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} can't be read: {error}") from error
    found = [line.strip() for line in lines]
    return [line for line in found if line and not line.startswith("#")]


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`, `[IPV6]:PORT` or `:PORT`, which is loopback.

    Raises:
        ConfigError: It is none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r:.80} is no address", hint="give HOST:PORT, as 127.0.0.1:8000")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int, access: HttpAccess) -> socket.socket:
    """Return a socket that listens, for `serve_http`.

    Raises:
        ConfigError: As from `serve_http`.
    """
    if not _is_loopback(host) and not access.tokens:
        raise ConfigError(
            f"{host} can be reached from other machines, and there is no token",
            hint="give --token-file or --token-env, or listen on 127.0.0.1",
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"nobody can listen on {host}:{port}: {error}") from error
    return listener
