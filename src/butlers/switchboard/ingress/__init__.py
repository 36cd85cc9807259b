"""The door in: who may hand a message in, whether there is room, whether it is new, and its row."""
