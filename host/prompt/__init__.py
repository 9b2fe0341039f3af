"""The prompt that ComfyUI validates or runs, and texts on its nodes."""

EVENTS = "lingbot_events"
"""The key of a CONDITIONING's events: the WorldEvents, and the prompts [(second, embedding [1, L, D])]."""
