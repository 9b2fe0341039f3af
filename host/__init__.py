"""The engine inside ComfyUI: its layers on ComfyUI's casting, its model as a MODEL, its solvers as SAMPLERs."""
