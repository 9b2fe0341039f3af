"""The integration of the engine into ComfyUI. Layers get ComfyUI's weight casting. A model becomes a MODEL, and a
solver becomes a SAMPLER."""
