"""An MCP server over stdio whose one tool reports its progress."""

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("progress")


@server.tool()
async def climb(steps: int, ctx: Context) -> str:
    """Takes the steps one after the other and tells of each."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"reached step {step}")
    return f"climbed {steps} steps"


if __name__ == "__main__":
    server.run("stdio")
