"""What the author of a message sees of its life: reactions, and a reply when it failed."""
