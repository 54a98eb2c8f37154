"""An MCP client on the Python SDK that does the calls of a plan.

    mcp_client.py MODE ANSWER COMMAND…

MODE is `legacy`, `auto` or a protocol revision; ANSWER is what its user says
when asked (`once`, `session`, `reject`, `decline`), or `-` for a client that
cannot ask. The plan comes on stdin: a JSON list of [tool, arguments]. Prints
one JSON object: the revision, the tools, and the results in their order.
"""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult


async def main(mode, answer, command):
    asked = []

    async def elicit(_context, params):
        asked.append(params.message)
        if answer == "decline":
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"decision": answer})

    server = StdioServerParameters(command=command[0], args=command[1:], env=dict(__import__("os").environ))
    callback = None if answer == "-" else elicit
    async with Client(stdio_client(server), mode=mode, elicitation_callback=callback) as client:
        tools = (await client.list_tools()).tools
        results = []
        for tool, arguments in json.load(sys.stdin):
            try:
                result = await client.call_tool(tool, arguments)
                results.append(result.model_dump(mode="json", by_alias=True, exclude_none=True))
            except Exception as error:
                results.append({"raised": f"{type(error).__name__}: {error}"})
        print(json.dumps({
            "protocol": str(client.protocol_version),
            "tools": [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools],
            "results": results,
            "asked": asked,
        }))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
