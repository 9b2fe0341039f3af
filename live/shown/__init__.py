"""The frames of a walk and their decoding."""
