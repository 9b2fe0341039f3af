"""The front without ComfyUI: the `lingbot-world` command, and `generate` for Python.

A run goes through `options` (what is asked for), `plan` (the checks), `run` (the stages), `memory` (what stays on the
GPU), `video` (the files) and `profile` (what each stage took).
"""
