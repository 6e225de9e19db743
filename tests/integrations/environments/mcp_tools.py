"""An MCP server over its standard input and output, made with the package itself."""

import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("numbers")
if len(sys.argv) > 1:
    with Path(sys.argv[1]).open("a") as starts:
        starts.write("started\n")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "waited"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def leave() -> str:
    """End the server in the middle of a call."""
    os._exit(1)


server.run()
