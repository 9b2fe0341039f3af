"""The processes of a run. The modules start and connect them, handle interrupts, and measure times and memory."""
