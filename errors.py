"""What can go wrong with what a user hands us. Each message names the thing, what was found, what was
expected and what to do; the command turns them into exit code 2, ComfyUI into an error on the node."""


class LingBotError(ValueError):
    """Bad input that the user can mend."""


class CheckpointError(LingBotError):
    """A weight file that is not what it should be."""


class TextError(LingBotError):
    """A prompt, tokenizer or text encoder that cannot be used."""


class CameraError(LingBotError):
    """Poses, intrinsics or a camera script that cannot be used."""


class InputError(LingBotError):
    """An image, size, path or option that cannot be used."""


class DependencyError(LingBotError):
    """A package that is missing or broken; the message names the interpreter and what to install."""
