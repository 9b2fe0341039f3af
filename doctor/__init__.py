"""The check of a machine by the command `lingbot-world doctor`. It reports hardware and software, tests the accuracy
and the speed of GPU kernels, and estimates the time for a chunk of video."""
