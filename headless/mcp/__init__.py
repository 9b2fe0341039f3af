"""The command `lingbot-world mcp`. It lets an AI assistant walk through a world, by the Model Context Protocol
(MCP)."""
