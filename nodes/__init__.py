"""ComfyUI's V3 node classes: words and sockets, no maths."""
