"""The integration of the engine into ComfyUI: MODELs, SAMPLERs, files, prompts and checks."""
