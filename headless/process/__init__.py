"""The processes of a run: their start, interrupts, times and memory, several of them together."""
