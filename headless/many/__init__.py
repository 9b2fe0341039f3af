"""Batches of videos: lists of jobs, caches of models between jobs, and distribution of jobs over machines with Ray."""
