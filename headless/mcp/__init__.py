"""The command `lingbot-world mcp`, with which an AI assistant explores a generated world."""
