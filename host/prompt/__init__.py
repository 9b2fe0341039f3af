"""The queued prompt (ComfyUI's graph of nodes) that ComfyUI validates or runs, and the texts shown on its nodes."""

EVENTS = "lingbot_events"
"""The key of a CONDITIONING's events. The value is (events, prompts): the WorldEvents, and a list of (seconds,
embedding [1, L, D])."""
