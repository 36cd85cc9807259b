"""The jobs, by the file that has them in its `JOBS`: a source, a transform and a sink, over an explicit window each."""

from __future__ import annotations

from collections.abc import Mapping

_FILES: Mapping[str, tuple[str, ...]] = {
    "connector_stats": ("connector-stats-hourly", "connector-stats-daily", "connector-stats-pruning"),
    "lake": ("lake-stream", "lake-compact", "lake-retain"),
    "delivery_stats": ("delivery-stats",),
    "service_levels": ("service-levels",),
    "routing_quality": ("routing-quality",),
    "routing_evaluate": ("routing-evaluate",),
    "reconciliation": ("reconciliation",),
    "audience_plan": ("audience-plan",),
}
NAMES: Mapping[str, str] = {name: file for file, names in _FILES.items() for name in names}
FORMER_NAMES = {"books": "reconciliation"}  # still understood where a job is named
