"""Heartbeats of fleets that never were, of any size, made on Spark itself and the same for the same seed."""
