"""An MCP client on the Python SDK that does the calls of a plan over HTTP.

    mcp_http.py MODE ANSWER URL TOKEN

As `mcp_client.py`, but for a server at URL.
"""

import asyncio
import json
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult


async def main(mode, answer, url, token):
    asked = []

    async def elicit(_context, params):
        asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": answer})

    headers = {"Authorization": f"Bearer {token}"}
    callback = None if answer == "-" else elicit
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=callback) as client:
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
                "tools": [tool.name for tool in tools],
                "results": results,
                "asked": asked,
            }))


asyncio.run(main(*sys.argv[1:]))
