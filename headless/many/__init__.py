"""Batches of videos. The modules read a list of jobs, cache models between jobs, and distribute jobs over machines with
Ray."""
