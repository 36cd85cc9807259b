"""DataFrame in, DataFrame out: one file for one output, no reading, no writing, no clock."""
