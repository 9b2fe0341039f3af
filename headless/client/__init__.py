"""A client that queues workflows on a ComfyUI server and downloads their results."""
