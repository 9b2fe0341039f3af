"""The processes that make a video: start, connection, signals, joint decoding, and measurement."""
