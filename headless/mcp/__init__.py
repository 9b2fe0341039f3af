"""`lingbot-world mcp`: an assistant walks through a world, by the Model Context Protocol over stdio."""
