"""The doctor: a machine's parts, trials of kernels, measured rates, and the estimated seconds of a chunk."""
