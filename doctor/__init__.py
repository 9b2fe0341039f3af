"""The checkup of a machine (`lingbot-world doctor`). It reports hardware and software, tests the accuracy and the speed
of kernels, and estimates the time for a chunk of video."""
