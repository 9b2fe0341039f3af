"""The command `lingbot-world mcp`: an AI assistant explores a generated world through the Model Context Protocol
(MCP)."""
