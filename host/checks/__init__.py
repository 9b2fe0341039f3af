"""Checks that report invalid or unused inputs. Some run before any node of the prompt, others before sampling."""
