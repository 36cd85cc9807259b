"""Everything about a channel, in one folder each. `channel` is the contract, `registry` finds the channels."""
