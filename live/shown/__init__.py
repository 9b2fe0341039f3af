"""The frames of a walk (a steered video) and their decoding."""
