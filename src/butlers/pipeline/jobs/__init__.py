"""A source, a transform and a sink, over an explicit window."""
