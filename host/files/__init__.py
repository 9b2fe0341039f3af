"""ComfyUI's folders, and the files that nodes read and write."""
