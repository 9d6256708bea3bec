"""The cluster's API, with every wait bounded and every fault of our own kind.

Objects are plain JSON here: what is read of them is little, and a server newer than the client
library's models is spoken to all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from kubernetes_asyncio.client import ApiClient

from ..config import KubernetesConfig
from ..errors import BackendUnreachableError
from ._kube_access import load_client
from ._kube_answers import RefusedError, read_answer, refusal, refusal_of, why
from ._kube_stream import PROTOCOLS, ExecStream
from ._tasks import Tasks

__all__ = ("Api",)

_NAME = "kubernetes"
_CALL_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_PATIENCE = 6.0  # with a server that is being restarted
_PAUSE = 0.2
_WATCH_SECONDS = 240  # then the server ends it, and it is begun anew
_MAX_MESSAGE = 4 << 20
_UNAUTHORIZED = 401
_BUSY = (429, 503)
_HANDSHAKE_SECONDS = 10.0


class Api:
    """One cluster's API.

    Args:
        config: Says which.

    Attributes:
        where: The server's address.
        source: Where the credentials are from.
        tasks: What goes on behind the callers' backs; `aclose` finishes it.
    """

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._client: ApiClient | None = None
        self._ahead = 0.0
        self.tasks = Tasks("a pod")
        self.where = ""
        self.source = ""

    async def open(self) -> None:
        """Read the credentials; nothing is asked of the server yet.

        Raises:
            ConfigError: They are malformed.
            BackendUnavailableError: There are none.
        """
        self._client, self.source = await load_client(self._config)
        self.where = str(self._client.configuration.host).rstrip("/")

    @property
    def _opened(self) -> ApiClient:
        assert self._client is not None
        return self._client

    def now(self) -> float:
        """Return the server's clock, in seconds since the epoch, within a second."""
        return time.time() + self._ahead

    def unreachable(self, what: str) -> BackendUnreachableError:
        """Return the error for a server that is not there or does not answer."""
        return BackendUnreachableError(
            f"the Kubernetes API server at {self.where} {what}",
            backend=_NAME,
            hint=f"is it running, and are the credentials right? They are from {self.source}",
        )

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        seconds: float = _CALL_SECONDS,
        patience: float = _PATIENCE,
    ) -> Any:
        """Make a request and return the answer's JSON.

        Args:
            method: The HTTP method.
            path: Below the server's address.
            body: What is sent, as JSON.
            query: The query.
            seconds: How long one attempt may take.
            patience: How long to try again while the server can't be reached or is busy. A
                request that was lost may have been carried out.

        Raises:
            RefusedError: It answered with an error.
            BackendUnreachableError: It can't be reached, or did not answer in time.
        """
        end = time.monotonic() + patience
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await self._once(method, path, body, query)
            except RefusedError as error:
                if error.status not in _BUSY or time.monotonic() >= end:
                    raise
            except TimeoutError:
                raise self.unreachable(
                    f"did not answer within {seconds:g} s (asked to {method} {path})"
                ) from None
            except (aiohttp.ClientError, OSError) as error:
                if time.monotonic() >= end:
                    raise self.unreachable(f"can't be reached: {why(error)}") from error
            await asyncio.sleep(_PAUSE)

    async def _once(
        self, method: str, path: str, body: object, query: Mapping[str, str] | None
    ) -> Any:
        status, data = await self._send(method, path, body, query)
        if status == _UNAUTHORIZED:  # what a plugin or a file gave may have run out
            await self._renew()
            status, data = await self._send(method, path, body, query)
        if status >= 300:
            raise refusal(status, data)
        try:
            return json.loads(data)
        except ValueError:
            raise RefusedError(status, "", f"what answered speaks no JSON: {data[:80]!r}") from None

    async def _send(
        self, method: str, path: str, body: object, query: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json"}
        data = None if body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS)
        async with self._session.request(
            method,
            self._url(path, query),
            data=data,
            headers=await self._headers(headers),
            timeout=timeout,
            **self._transport(),
        ) as answer:
            self._set_clock(answer.headers.get("Date"))
            return answer.status, await read_answer(answer)

    @property
    def _session(self) -> aiohttp.ClientSession:
        session = self._opened.rest_client.pool_manager
        assert isinstance(session, aiohttp.ClientSession)
        return session

    def _url(self, path: str, query: Mapping[str, str] | Sequence[tuple[str, str]] | None) -> str:
        return self.where + path + (f"?{urlencode(query)}" if query else "")

    async def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        await self._opened.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    def _transport(self) -> dict[str, Any]:
        found = self._opened.configuration
        options = {
            "proxy": found.proxy,
            "proxy_headers": found.proxy_headers,
            "server_hostname": found.tls_server_name,
        }
        return {name: value for name, value in options.items() if value}

    async def _renew(self) -> None:
        """Read the credentials again."""
        fresh, _ = await load_client(self._config)
        self._opened.configuration.api_key = fresh.configuration.api_key
        await fresh.close()

    def _set_clock(self, date: str | None) -> None:
        if date:
            with contextlib.suppress(ValueError):
                self._ahead = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()

    # Streams.

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Yield what happens to objects, until the server ends it.

        Raises:
            RefusedError: It answered with an error, or ended the stream with one.
            BackendUnreachableError: It can't be reached.
        """
        asked = {**query, "watch": "1", "timeoutSeconds": str(_WATCH_SECONDS)}
        try:
            async with self._stream(path, asked, _WATCH_SECONDS + 30) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise refusal_of(int(status.get("code") or 500), status)
                    yield event
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.unreachable(f"ended a watch: {why(error)}") from error

    @contextlib.asynccontextmanager
    async def _stream(
        self, path: str, query: Mapping[str, str], seconds: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=seconds)
        async with self._session.get(
            self._url(path, query),
            headers=await self._headers({}),
            timeout=timeout,
            **self._transport(),
        ) as answer:
            if answer.status >= 300:
                raise refusal(answer.status, await answer.content.read(_MAX_MESSAGE))
            yield answer

    async def log(self, namespace: str, pod: str, container: str) -> AsyncIterator[bytes]:
        """Yield a container's log while it runs, to its end.

        Raises:
            RefusedError: The server said no.
            BackendUnreachableError: The stream broke.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        try:
            async with self._stream(path, {"container": container, "follow": "1"}, None) as answer:
                async for data in answer.content.iter_any():
                    yield data
        except (aiohttp.ClientError, OSError) as error:
            raise self.unreachable(f"ended a log: {why(error)}") from error

    async def exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        on_end: Callable[[], Awaitable[None]],
    ) -> ExecStream:
        """Run a process in a container and return its streams.

        Raises:
            RefusedError: The server said no.
            BackendUnreachableError: It can't be reached.
        """
        query = [("container", container), ("stdin", "1"), ("stdout", "1"), ("stderr", "1")]
        query += [("command", part) for part in command]
        url = self._url(f"/api/v1/namespaces/{namespace}/pods/{pod}/exec", query)
        parts = urlsplit(url)
        url = parts._replace(scheme={"https": "wss"}.get(parts.scheme, "ws")).geturl()
        transport = {k: v for k, v in self._transport().items() if k != "server_hostname"}
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                socket = await self._session.ws_connect(
                    url,
                    protocols=PROTOCOLS,
                    headers=await self._headers({}),
                    max_msg_size=_MAX_MESSAGE,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                    **transport,
                )
        except aiohttp.WSServerHandshakeError as error:
            # The body, which says why, is not to be had from the client library.
            raise RefusedError(error.status, "", f"exec was refused: {error.message}") from error
        except TimeoutError:
            raise self.unreachable("did not begin an exec in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self.unreachable(f"can't be reached: {why(error)}") from error
        return ExecStream(socket, on_end, self.tasks.spawn)

    async def aclose(self) -> None:
        """Finish the background's work and close every connection. Safe to call again."""
        await self.tasks.drain()
        client, self._client = self._client, None
        if client is not None:
            await client.close()
