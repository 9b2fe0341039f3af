"""The front without ComfyUI: the `lingbot-world` command, and `generate` for Python.

A run goes through `options` (the request), `plan` (the checks) and `run` (the stages). `stages` and `rollout` compute
the two kinds of models, `files` reads and writes, and `process/profile` measures time and memory of each stage.
"""
