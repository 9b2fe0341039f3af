"""Image files as browsers show them, and the colours of images and video frames."""
