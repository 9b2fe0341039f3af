"""The command `lingbot-world mcp`: an AI assistant walks through a world, by the Model Context Protocol (MCP)."""
