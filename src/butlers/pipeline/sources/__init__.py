"""Where the pipeline reads."""
