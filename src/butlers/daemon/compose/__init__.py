"""The composition root: everything is wired here, and only here."""
