"""Where the pipeline writes."""
