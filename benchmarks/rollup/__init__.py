"""Ways to roll heartbeats up by the hour, and what they cost."""
