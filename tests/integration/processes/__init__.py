"""The real command `butlers` in processes of its own: temporary data directories, free ports, real signals."""
