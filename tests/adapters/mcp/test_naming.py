"""What an MCP server is called in frontiers, reports and errors if it was given no name."""

from __future__ import annotations

import pytest

from quiesce import Scope
from quiesce.integrations.mcp import connect_stdio
from quiesce.integrations.mcp.server_name import program_name
from tests.adapters.mcp import servers

NAMES = {
    "weather": "weather",
    "/usr/bin/weather --port 1": "weather",
    "python server.py": "server.py",
    "venv/bin/python3.12 -I -X dev -m weather.server --token secret": "weather.server",
    "python -c import-this": "python",
    "python": "python",
    "python -m": "python",
    "npx -y @modelcontextprotocol/server-filesystem .": "@modelcontextprotocol/server-filesystem",
    "uvx --from git+https://host/weather weather": "weather",
    "uv --directory /srv/app run server.py": "server.py",
    "node build/index.js": "index.js",
    r"C:\\python.exe C:\\srv\\weather.py": "weather.py",
    "docker run -i --rm mcp/fetch": "docker",
}


@pytest.mark.parametrize("line", NAMES)
def test_a_server_is_called_by_its_program(line: str) -> None:
    """Not by the interpreter or launcher, which is the same for most servers."""
    command, *args = line.split()
    assert program_name(command, args) == NAMES[line]


@pytest.mark.backends("asyncio")
@pytest.mark.real_time
async def test_a_session_has_that_name() -> None:
    """And the name that it is given, if it is given one."""
    async with Scope("test") as scope:
        unnamed = await connect_stdio(scope, servers.plain_server())
        assert unnamed.name == "plain_server.py"
        named = await connect_stdio(scope, servers.plain_server(), name="weather")
        assert named.name == "weather"
