"""The client of a ComfyUI server: workflows into its queue, results out of it."""
