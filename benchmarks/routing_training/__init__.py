"""How the local classifier's numbers are made; see docs/operating/routing.md."""
