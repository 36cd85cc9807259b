"""What the books say: a line per day and rule, and every breach with the ids to look it up by."""

from __future__ import annotations

from butlers.pipeline.tables import DAY, LONG, STRING, Table, columns

BOOKS = Table(
    schema="pipeline",
    name="books",
    columns=columns(date=DAY, rule=STRING, severity=STRING, checked=LONG, broken=LONG, young=LONG, run_id=STRING),
    key=("date", "rule"),
    time="date",
)

BOOKS_FINDINGS = Table(
    schema="pipeline",
    name="books_findings",
    columns=columns(date=DAY, rule=STRING, key=STRING, severity=STRING, detail=STRING, run_id=STRING),
    key=("date", "rule", "key"),
    time="date",
)
