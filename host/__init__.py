"""The integration of the engine into ComfyUI. ComfyUI casts and moves the weights of the engine's layers. A model
becomes a MODEL, and a solver becomes a SAMPLER."""
