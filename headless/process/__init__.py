"""The processes that make a video: their start and connection, signals, joint decoding, and measurement of time and
memory."""
