"""Butlers that an operator took out of service, and the history of who was eligible when, and why."""
