"""Checks that report invalid or unused inputs, before a prompt runs and before a run samples."""
