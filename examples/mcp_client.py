"""An agent's tool calls, over MCP, without the agent: what a model would ask for, and what it gets.

Needs `pip install 'ringfence[mcp]'`. It starts `ringfence mcp`, which is what the configuration of
any MCP client does too (docs/mcp.md), and works in the sandbox that it has for this client.
"""

from __future__ import annotations

import sys

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ImageContent, TextContent

from ringfence.mcp import ERROR_META

DRAW = """
import struct, zlib

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

rows = [b"".join(bytes([x * 8, y * 8, 128]) for x in range(32)) for y in range(32)]
pixels = b"".join(b"\\0" + row for row in rows)
with open("gradient.png", "wb") as file:
    file.write(b"\\x89PNG\\r\\n\\x1a\\n")
    file.write(chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)))
    file.write(chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""))
print("drawn")
"""

CALLS = [
    ("write_file", {"path": "numbers.txt", "content": "3\n1\n2\n"}),
    ("run_command", {"command": "sort -n numbers.txt; cat /etc/shadow"}),
    ("run_code", {"language": "python", "code": DRAW, "images": ["gradient.png"]}),
    ("read_file", {"path": "/etc/passwd"}),
    ("start_command", {"command": "while sleep 0.1; do date; done"}),
    ("list_commands", {}),
]


async def progress(done: float, _total: float | None, message: str | None) -> None:
    print(f"   ... {done:.1f} s: {message}")


async def main() -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "ringfence", "mcp"])
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        print("tools:", ", ".join(tool.name for tool in tools))
        for name, arguments in CALLS:
            print(f"\n-> {name}")
            result = await client.call_tool(name, arguments, progress_callback=progress)
            for block in result.content:
                if isinstance(block, TextContent):
                    print(block.text)
                elif isinstance(block, ImageContent):
                    print(f"({block.mime_type}, {len(block.data)} characters of base64)")
            if result.is_error:
                print("   an error for the model, for programs:", (result.meta or {})[ERROR_META])
    # The client has gone, and with it its sandbox and the command in the background.


if __name__ == "__main__":
    anyio.run(main)
