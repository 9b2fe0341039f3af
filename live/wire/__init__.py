"""A walk (a steered video) over a websocket: its messages, the frames sent to a client, and the limits of a connection.

The command's own server and ComfyUI's Live node use this package.
"""
