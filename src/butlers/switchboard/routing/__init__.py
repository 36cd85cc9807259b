"""Which butler a message is for."""
