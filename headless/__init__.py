"""The front without ComfyUI: the `lingbot-world` command, and `generate` for Python.

A run goes through `options` (the request), `plan` (the checks), `run` (the stages), `stages` and `rollout` (the two
kinds of models), `files` (input and output files) and `profile` (time and memory of each stage).
"""
