"""Tables of the jobs beside the connectors' rollups, one file per topic; the contract is `butlers.pipeline.tables`."""
