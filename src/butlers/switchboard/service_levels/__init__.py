"""How well Switchboard takes messages in and brings them to their end (seed 003, "SLO/SLI")."""
