"""The nodes that sample a video, and that save or load the state from which a later run continues it."""
