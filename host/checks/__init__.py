"""Checks that report invalid or unused inputs, some before any node of a prompt runs, others before sampling."""
