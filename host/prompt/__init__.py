"""The queued prompt (ComfyUI's graph of nodes) that ComfyUI validates or runs, and the texts shown on its nodes."""

EVENTS = "lingbot_events"
"""The key of the events (later prompts of a video) in the dict of a CONDITIONING's entry. The value is a pair: a tuple
of WorldEvents, and a list of (time in seconds, embedding [1, L, D])."""
