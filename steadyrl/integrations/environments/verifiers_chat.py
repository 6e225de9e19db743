"""The harness of verifiers' episodes: its plain chat with tools, in this process.

That of verifiers is a script which uv starts for every episode. This module is imported where verifiers is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult, Runtime

__all__ = ["ChatHarness"]


class ChatHarness(NullHarness):  # type: ignore[misc]  # Any where verifiers is not installed
    """Ask for completions and make their calls until one has none."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Runtime) -> None:
        """Do nothing: there is no program."""

    async def launch(
        self, ctx: Any, trace: Any, runtime: Runtime, endpoint: str, secret: str, mcp_urls: Mapping[str, str], data: Any
    ) -> ProgramResult:
        """See Harness."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers_config = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        async with AsyncExitStack() as stack:
            tools, dispatch, servers = await connect_mcp(servers_config, stack)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
            body = {"model": ctx.model, **({"tools": tools} if tools else {})}
            while True:
                response = await client.post(
                    f"{endpoint}/chat/completions",
                    json={**body, "messages": messages},
                    headers={"Authorization": f"Bearer {secret}"},
                )
                response.raise_for_status()
                message = response.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in message["tool_calls"]:
                    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                    content = await call_mcp(servers, dispatch, name, arguments)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})
