"""The front end without ComfyUI: the command `lingbot-world`, and the function `generate` for Python.

`options` has the options of a run, `plan` checks them, and `run` computes the video. `stages` has the steps of the base
model, such as encoding the prompt and denoising, and `rollout` has the steps of causal models. `files` reads and writes
files, and `process/profile` measures the steps.
"""
