"""The node classes and web folders registered in ComfyUI's module `nodes`."""

import sys


def node_classes() -> dict[str, type]:
    """Return the classes of all installed nodes by node id."""
    return sys.modules["nodes"].NODE_CLASS_MAPPINGS


def script_folders() -> dict[str, str]:
    """Return the web folder of each node pack by the pack's name."""
    return sys.modules["nodes"].EXTENSION_WEB_DIRS
