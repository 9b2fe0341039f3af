"""Batches of videos: lists of jobs, caches of models, and distribution over machines with Ray."""
