"""People and their documents, and the two ways to plan a message to them; used by `audience.py` and by the tests."""
