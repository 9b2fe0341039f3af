"""The front end without ComfyUI: the command `lingbot-world`, and the function `generate` for Python.

`options` has the options of a run, `plan` checks them, and `run` computes the video. `stages` has the steps for the
base model, `rollout` those for causal models. `files` reads and writes files, and `process/profile` measures the time
and memory of each stage.
"""
