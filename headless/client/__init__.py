"""A client of a ComfyUI server that queues workflows and downloads their results."""
