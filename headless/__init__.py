"""The front end without ComfyUI: the command `lingbot-world` and the function `generate` for Python."""
