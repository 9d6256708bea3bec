"""What answers in a pod of the tests' API server: a warden's words, as they are on the wire."""

from __future__ import annotations

import json
import struct

from aiohttp import web

from ..warden import wire


class Peer:
    """What answers in a pod: a warden's words, as they are on the wire."""

    instance = bytes(range(16))
    endless = False  # whether commands run until something ends them
    started = 0  # how many of those have

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._got = b""
        self._greeted = False

    async def _say(self, data: bytes) -> None:
        for part in (data[:5], data[5:]):  # no message is as long as a frame
            await self._socket.send_bytes(b"\x01" + part)

    async def take(self, data: bytes) -> bool:
        assert data[0] == 0, "the host speaks on stdin alone"
        self._got += data[1:]
        if not self._greeted:
            if len(self._got) < 32:
                return True
            self._got, self._greeted = self._got[32:], True
            hello = struct.pack("<IIII", 2, 1, 1 | 2 | 4, 65534) + self.instance
            await self._say(wire.frame(wire.HELLO, 0, hello))
        while len(self._got) >= 12:
            length, channel, kind, _, _ = struct.unpack_from("<IIBBH", self._got)
            if len(self._got) < 12 + length:
                break
            self._got = self._got[12 + length :]
            if kind == wire.START and self.endless:
                await self._say(wire.frame(wire.STDOUT, channel, b"hi\n"))
                Peer.started += 1
            elif kind == wire.START:
                end = struct.pack("<BBBBiQQQQQ", 0, 0, 0, 0, 0, 3, 0, 0, 0, 0)
                out = wire.frame(wire.STDOUT, channel, b"hi\n")
                await self._say(out + wire.frame(wire.EXIT, channel, end))
            elif kind == wire.LIFETIME:
                status = json.dumps({"status": "Success"}).encode()
                await self._socket.send_bytes(b"\x03" + status)
                if self._socket.ws_protocol == "v5.channel.k8s.io":
                    await self._socket.send_bytes(b"\xff\x01")  # its stdout is closed
                await self._socket.close()
                return False
        return True
