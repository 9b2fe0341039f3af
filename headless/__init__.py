"""The front end without ComfyUI: the command `lingbot-world`, and the function `generate` for Python. `plan` checks the
`options` of a run, and `run` computes the video with `stages` (base model) or `rollout` (causal models)."""
