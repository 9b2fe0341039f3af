"""The checkup of a machine (`lingbot-world doctor`): its hardware and software, accuracy tests of kernels, their speed
in TFLOP/s, and the estimated time for a chunk of video."""
