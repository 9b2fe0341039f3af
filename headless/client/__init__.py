"""A client of a ComfyUI server. It queues workflows and downloads their results."""
