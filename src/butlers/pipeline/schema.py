"""The pipeline's own tables. Apart from all else, so that a service can make them without loading what jobs need."""

from __future__ import annotations

from butlers.outbound import MIGRATIONS as OUTBOUND
from butlers.storage.migrations import MigrationSet

SCHEMA = "pipeline"
# With the tables that audience plans are made from and loaded into.
MIGRATIONS = (MigrationSet(schema=SCHEMA, package="butlers.pipeline"), OUTBOUND)
