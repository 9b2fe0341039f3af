"""The check of a machine by `lingbot-world doctor`: facts, accuracy and speed of GPU kernels, and the estimated time of
a chunk of video."""
