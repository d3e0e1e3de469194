"""Drives the example server with the `mcp` package, which no one here wrote.

    python client.py SERVER DIRECTORY
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp import types


async def answer(context, params):
    return types.ElicitResult(action="accept", content={"confirm": True})


def text(result):
    return result.content[0].text


async def main(server, directory):
    parameters = StdioServerParameters(command=server, args=[directory])
    async with stdio_client(parameters) as (read, write):
        async with ClientSession(read, write, elicitation_callback=answer) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            ran = await session.call_tool("Bash", {"command": "echo hello > a.txt; cat a.txt"})
            undone = await session.call_tool("undo", {"steps": 1})
            status = await session.call_tool("get_session_status", {})
            outside = await session.call_tool("read_file", {"file_path": "/etc/passwd"})
            discarded = await session.call_tool("discard_undo_history", {})
            structured = getattr(status, "structured_content", None) or status.structuredContent
            failed = getattr(outside, "is_error", None)
            failed = outside.isError if failed is None else failed
            print(json.dumps({
                "tools": [tool.name for tool in tools],
                "ran": text(ran),
                "undone": text(undone),
                "isolation": structured["isolation"],
                "outside_failed": failed,
                "discarded": text(discarded),
            }))


asyncio.run(main(sys.argv[1], sys.argv[2]))
