"""Batches of videos: a list of jobs, caches between jobs, and distribution over machines by Ray."""
