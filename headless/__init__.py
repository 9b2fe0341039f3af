"""The front end without ComfyUI: the command `lingbot-world`, and the function `generate` for Python. The module `plan`
checks the `options` of a run. The module `run` computes the video with `stages` (base model) or `rollout` (causal
models)."""
