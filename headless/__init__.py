"""The front without a canvas: the `lingbot-world` command, and `generate` for Python.

Its parts, in the order in which a run walks through them: `plan` checks, `memory` decides what stays on the GPU, `run`
carries the stages out, `two_experts` samples, `video` writes, `profile` tells what each stage took.
"""
