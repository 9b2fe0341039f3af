"""A walk (a steered video) over a websocket, for the command `lingbot-world live` and ComfyUI."""
