"""The adaptation of the engine to ComfyUI. Layers use ComfyUI's weight casting, a model becomes a MODEL, and a solver
becomes a SAMPLER."""
