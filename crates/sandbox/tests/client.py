"""Makes the calls it is told to, with the package `mcp`, which no one here wrote.

    python client.py ERA SERVER ARGUMENT...

Reads one call a line, {"tool", "arguments", "answer"}, and writes what came of it, with the questions
that the server asked meanwhile; `answer` is what the user says to them. The first line that it writes
are the tools.
"""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp import types


class User:
    """Whoever sits in front of the client."""

    def __init__(self):
        self.answer = False
        self.questions = []

    async def asked(self, context, params):
        self.questions.append(params.message)
        return types.ElicitResult(action="accept", content={"confirm": self.answer})


def say(message):
    print(json.dumps(message), flush=True)


async def main(era, command, *arguments):
    user = User()
    server = StdioServerParameters(command=command, args=list(arguments))
    async with Client(server, mode=era, elicitation_callback=user.asked) as client:
        say({"tools": [tool.name for tool in (await client.list_tools()).tools]})
        while line := await asyncio.to_thread(sys.stdin.readline):
            call = json.loads(line)
            user.answer, user.questions = call.get("answer", False), []
            result = await client.call_tool(call["tool"], call["arguments"])
            say({
                "text": result.content[0].text,
                "structured": result.structured_content,
                "failed": bool(result.is_error),
                "questions": user.questions,
            })


asyncio.run(main(*sys.argv[1:]))
