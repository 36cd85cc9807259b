"""Routing by a model: it picks spans of a text and butlers that are there, and nothing else."""
