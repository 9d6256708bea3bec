"""The server that the protocol's own conformance suite is run against.

It is ringfence's server, made and served as `ringfence mcp --http` does it, with the tools,
resources and prompts added that the suite calls by name. So what is tested is our transport, our
doorway and our handling of calls, and our tools stand in the lists that the suite looks at.

    python -m tests.mcp.conformance_server BACKEND

It says its address on stdout, and ends when stdin does.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import warnings
import zlib
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from ringfence import SessionManager, open_backend
from ringfence.mcp import HttpAccess, open_server
from ringfence.mcp.access import listen
from ringfence.mcp.http import serve_listening

Ctx = Context[Any, Any]

PAUSE = 0.05

CONFIGS: dict[str, Any] = {
    "bubblewrap": "bubblewrap",
    "container": {"backend": "container", "image": "ringfence-test:minimal"},
}


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _chunk(b"IEND", b"")
)
WAV = b"RIFF" + struct.pack("<I", 38) + b"WAVEfmt " + struct.pack(
    "<IHHIIHHbb", 16, 1, 1, 8000, 16000, 2, 16, 0, 0
)  # fmt: skip

IMAGE = types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")
AUDIO = types.AudioContent(data=base64.b64encode(WAV).decode(), mime_type="audio/wav")


def text(value: str) -> types.TextContent:
    return types.TextContent(text=value)


def resource(uri: str, media_type: str, value: str) -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=media_type, text=value)
    return types.EmbeddedResource(resource=contents)


def schema(required: bool = True, **properties: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": list(properties)} if required else {})


def ask(message: str, **properties: dict[str, Any]) -> types.ElicitRequest:
    params = types.ElicitRequestFormParams(
        message=message, requested_schema=schema(True, **properties)
    )
    return types.ElicitRequest(params=params)


def sample(prompt: str, most: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=most)
    )


def wanted(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def given(ctx: Ctx, key: str) -> Any:
    """Return what the client answered to one question, or None if it did not."""
    found = (ctx.input_responses or {}).get(key)
    return None if found is None else found.model_dump(by_alias=True)


STRING = {"type": "string"}


def add_contents(server: MCPServer[Any]) -> None:
    """Add what returns contents of each kind."""

    @server.tool(structured_output=False)
    def test_simple_text() -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @server.tool(structured_output=False)
    def test_image_content() -> list[types.ImageContent]:
        """Return an image."""
        return [IMAGE]

    @server.tool(structured_output=False)
    def test_audio_content() -> list[types.AudioContent]:
        """Return a sound."""
        return [AUDIO]

    @server.tool(structured_output=False)
    def test_embedded_resource() -> list[types.EmbeddedResource]:
        """Return a resource."""
        return [
            resource(
                "test://embedded-resource", "text/plain", "This is an embedded resource content."
            )
        ]

    @server.tool(structured_output=False)
    def test_multiple_content_types() -> list[types.ContentBlock]:
        """Return several kinds at once."""
        value = json.dumps({"test": "data", "value": 123})
        mixed = resource("test://mixed-content-resource", "application/json", value)
        return [text("Multiple content types test:"), IMAGE, mixed]

    @server.tool(structured_output=False)
    def test_error_handling() -> str:
        """Fail."""
        raise RuntimeError("This tool intentionally returns an error for testing")

    @server.resource("test://static-text", description="A text.", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", description="An image.", mime_type="image/png")
    def static_binary() -> bytes:
        return PNG

    @server.resource("test://watched-resource", description="One that is watched.")
    def watched() -> str:
        return "watched"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:  # noqa: A002  # the suite's name
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def add_prompts(server: MCPServer[Any]) -> None:
    """Add prompts of each kind."""

    @server.prompt()
    def test_simple_prompt() -> list[Message]:
        """Say a sentence."""
        return [UserMessage(text("This is a simple prompt for testing."))]

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> list[Message]:
        """Say two words."""
        return [UserMessage(text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # noqa: N803
        """Show a resource."""
        shown = resource(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [
            UserMessage(shown),
            UserMessage(text("Please process the embedded resource above.")),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[Message]:
        """Show an image."""
        return [UserMessage(IMAGE), UserMessage(text("Please analyze the image above."))]

    @server.prompt()
    def test_input_required_result_prompt(ctx: Ctx) -> Any:
        """Ask for a context."""
        answer = given(ctx, "user_context")
        if answer is None:
            question = "What context should the prompt use?"
            return wanted(user_context=ask(question, context=STRING))
        return [UserMessage(text(f"Context: {answer['content']['context']}"))]


def add_talking(server: MCPServer[Any]) -> None:
    """Add what talks to the client while it runs."""

    @server.tool(structured_output=False)
    async def test_tool_with_logging(ctx: Ctx) -> str:
        """Send three messages for the log."""
        for part in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(part)
            await anyio.sleep(PAUSE)
        return "done"

    @server.tool(structured_output=False)
    async def test_logging_tool(ctx: Ctx) -> str:
        """Send a message for the log."""
        await ctx.info("logged")
        return "done"

    @server.tool(structured_output=False)
    async def test_tool_with_progress(ctx: Ctx) -> str:
        """Report progress."""
        for part in (0, 50, 100):
            await ctx.report_progress(part, 100)
            await anyio.sleep(PAUSE)
        return "done"

    @server.tool(structured_output=False)
    async def test_sampling(prompt: str, ctx: Ctx) -> str:
        """Ask the client's model."""
        message = types.SamplingMessage(role="user", content=text(prompt))
        result = await ctx.session.create_message(
            [message], max_tokens=100, related_request_id=ctx.request_id
        )
        content = result.content
        return f"LLM response: {content.text if isinstance(content, types.TextContent) else ''}"

    async def asked(ctx: Ctx, message: str, wanted: dict[str, Any]) -> types.ElicitResult:
        result: types.ElicitResult = await ctx.session.elicit_form(message, wanted, ctx.request_id)
        return result

    @server.tool(structured_output=False)
    async def test_elicitation(message: str, ctx: Ctx) -> str:
        """Ask the user."""
        result = await asked(ctx, message, schema(username=STRING, email=STRING))
        return f"User response: action={result.action}, content={json.dumps(result.content)}"

    @server.tool(structured_output=False)
    async def test_elicitation_sep1034_defaults(ctx: Ctx) -> str:
        """Ask the user, with defaults."""
        result = await asked(
            ctx,
            "Who are you?",
            schema(
                required=False,
                name={"type": "string", "default": "John Doe"},
                age={"type": "integer", "default": 30},
                score={"type": "number", "default": 95.5},
                status={
                    "type": "string",
                    "enum": ["active", "inactive", "pending"],
                    "default": "active",
                },
                verified={"type": "boolean", "default": True},
            ),
        )
        return f"Elicitation completed: action={result.action}, content={result.content}"

    @server.tool(structured_output=False)
    async def test_elicitation_sep1330_enums(ctx: Ctx) -> str:
        """Ask the user to choose."""
        plain = ["option1", "option2", "option3"]
        titled = [
            {"const": f"value{number}", "title": f"{name} Option"}
            for number, name in enumerate(("First", "Second", "Third"), start=1)
        ]
        result = await asked(
            ctx,
            "Choose.",
            schema(
                untitledSingle={"type": "string", "enum": plain},
                titledSingle={"type": "string", "oneOf": titled},
                legacyEnum={
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                untitledMulti={"type": "array", "items": {"type": "string", "enum": plain}},
                titledMulti={"type": "array", "items": {"anyOf": titled}},
            ),
        )
        return f"Elicitation completed: action={result.action}, content={result.content}"


def add_rounds(server: MCPServer[Any]) -> None:
    """Add what needs the client's input before it can answer, as the stateless generation does."""

    @server.tool(structured_output=False)
    def test_input_required_result_elicitation(ctx: Ctx) -> Any:
        """Ask for a name."""
        answer = given(ctx, "user_name")
        name = (answer or {}).get("content") or {}
        if not isinstance(name.get("name"), str):
            return wanted(user_name=ask("What is your name?", name=STRING))
        return f"Hello, {name['name']}!"

    @server.tool(structured_output=False)
    def test_streaming_elicitation(ctx: Ctx) -> Any:
        """Ask for a name."""
        return test_input_required_result_elicitation(ctx)

    @server.tool(structured_output=False)
    def test_input_required_result_sampling(ctx: Ctx) -> Any:
        """Ask the client's model."""
        answer = given(ctx, "capital_question")
        if answer is None:
            return wanted(capital_question=sample("What is the capital of France?", 100))
        return json.dumps(answer["content"])

    @server.tool(structured_output=False)
    def test_input_required_result_list_roots(ctx: Ctx) -> Any:
        """Ask for the client's roots."""
        answer = given(ctx, "client_roots")
        if answer is None:
            return wanted(client_roots=types.ListRootsRequest())
        return ", ".join(str(root["uri"]) for root in answer["roots"])

    @server.tool(structured_output=False)
    def test_input_required_result_request_state(ctx: Ctx) -> Any:
        """Keep a state with the client."""
        if given(ctx, "confirm") is None or ctx.request_state != "the state":
            return wanted("the state", confirm=ask("Please confirm", ok={"type": "boolean"}))
        return "state-ok"

    @server.tool(structured_output=False)
    def test_input_required_result_tampered_state(ctx: Ctx) -> Any:
        """Keep a state with the client."""
        return test_input_required_result_request_state(ctx)

    @server.tool(structured_output=False)
    def test_input_required_result_multiple_inputs(ctx: Ctx) -> Any:
        """Ask three questions at once."""
        keys = ("user_name", "greeting", "client_roots")
        if any(given(ctx, key) is None for key in keys):
            return wanted(
                "three",
                user_name=ask("What is your name?", name=STRING),
                greeting=sample("Generate a greeting", 50),
                client_roots=types.ListRootsRequest(),
            )
        return "all three"

    @server.tool(structured_output=False)
    def test_input_required_result_multi_round(ctx: Ctx) -> Any:
        """Ask twice."""
        if ctx.request_state == "second" and (color := given(ctx, "step2")):
            return f"colour: {color['content']['color']}"
        if ctx.request_state == "first" and given(ctx, "step1"):
            question = "Step 2: What is your favorite color?"
            return wanted("second", step2=ask(question, color=STRING))
        return wanted("first", step1=ask("Step 1: What is your name?", name=STRING))

    @server.tool(structured_output=False)
    def test_input_required_result_capabilities(ctx: Ctx) -> Any:
        """Ask what the client can answer."""
        able = ctx.client_capabilities or types.ClientCapabilities()
        requests: dict[str, Any] = {}
        if able.sampling is not None:
            requests["question"] = sample("Say a word", 10)
        if able.elicitation is not None:
            requests["name"] = ask("What is your name?", name=STRING)
        if not requests or ctx.input_responses:
            return "nothing more to ask"
        return wanted(**requests)

    @server.tool(structured_output=False)
    def test_missing_capability(ctx: Ctx) -> str:
        """Need what the client can't do."""
        able = ctx.client_capabilities
        if able is not None and able.sampling is not None:
            return "it can"
        needed = types.MissingRequiredClientCapabilityErrorData(
            required_capabilities=types.ClientCapabilities(sampling=types.SamplingCapability())
        )
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="sampling is needed",
            data=needed.model_dump(by_alias=True, mode="json", exclude_none=True),
        )

    @server.tool(structured_output=False)
    async def test_trigger_tool_change(ctx: Ctx) -> str:
        """Say that the tools have changed."""
        await ctx.notify_tools_changed()
        return "done"

    @server.tool(structured_output=False)
    async def test_trigger_prompt_change(ctx: Ctx) -> str:
        """Say that the prompts have changed."""
        await ctx.notify_prompts_changed()
        return "done"


def add_handlers(server: MCPServer[Any]) -> None:
    """Answer the requests that have no decorator of their own."""

    async def nothing(_ctx: Any, _params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    inner = server._lowlevel_server
    inner.add_request_handler("logging/setLevel", types.SetLevelRequestParams, nothing)
    inner.add_request_handler("resources/subscribe", types.SubscribeRequestParams, nothing)
    inner.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(_ref: Any, argument: types.CompletionArgument, _context: Any) -> Any:
        known = [word for word in ("paris", "park", "party") if word.startswith(argument.value)]
        return types.Completion(values=known, total=len(known), has_more=False)


async def main(backend_name: str) -> None:
    async with (
        open_backend(CONFIGS[backend_name]) as backend,
        SessionManager(backend) as sessions,
        open_server(sessions, one_client=False) as server,
    ):
        for add in (add_contents, add_prompts, add_talking, add_rounds, add_handlers):
            add(server)
        access = HttpAccess()
        with listen("127.0.0.1", 0, access) as listener:
            host, port = listener.getsockname()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_listening, server, listener, access)
                print(f"http://{host}:{port}/mcp", flush=True)
                await anyio.to_thread.run_sync(sys.stdin.read)
                tasks.cancel_scope.cancel()


if __name__ == "__main__":
    # What the suite still asks for of the handshake generation.
    warnings.filterwarnings("ignore", category=MCPDeprecationWarning)
    anyio.run(main, sys.argv[1])
