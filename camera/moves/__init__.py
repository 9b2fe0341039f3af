"""Ways to make a camera path: presets, keys, keyframes, and what the editor on the canvas sends."""
