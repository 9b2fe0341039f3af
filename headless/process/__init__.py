"""The processes that make a video: their start and connection, signals that end them, and measurement of time and
memory."""
