"""Kills and faults against running processes, judged by what the simulated providers received."""
