"""A request from its row to its end: claimed, worked on, read, measured, and shown to its author."""
