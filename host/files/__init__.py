"""Access to ComfyUI's folders, and to the files that nodes read and write."""
