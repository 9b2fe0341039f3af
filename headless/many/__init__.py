"""Batches of videos: lists of jobs, caches of models between jobs, and distribution over machines with Ray."""
