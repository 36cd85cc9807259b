"""One door in and one door out for a team of agents."""

__version__ = "0.1.0"
