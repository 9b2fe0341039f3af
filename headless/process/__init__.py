"""The processes that make a video: their start and connection, signals, and measurement of time and memory."""
