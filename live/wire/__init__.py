"""A walk (a steered video) over a websocket: its messages, the frames sent to a client, and the limits of a connection.

The server of the command `lingbot-world live` and ComfyUI's Live node use this package.
"""
