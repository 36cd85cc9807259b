"""Jobs of the pipeline for services: each in a process of its own, so that no service waits for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from butlers.butler.schedules import Job
from butlers.daemon.compose.process import Process
from butlers.errors import InternalError
from butlers.pipeline.process import run_in_process
from butlers.pipeline.windows import Window
from butlers.switchboard.connectors.rollups import RunJob
from butlers.switchboard.connectors.rollups import Window as Interval

NOWHERE = "none"  # the master of an installation whose jobs somebody else starts


def pipeline_jobs(process: Process) -> RunJob:
    """Runs a job over a window as the settings say, and waits for its end without holding anybody up."""
    settings, places = process.settings, process.places

    async def run(job: str, window: Interval, **arguments: str) -> dict[str, Any]:
        if settings.spark_master == NOWHERE:
            return {"skipped": "spark_master is none: whoever set it starts the jobs (butlers pipeline run)"}
        done = await run_in_process(
            job,
            Window(start=window.start, end=window.end),
            dsn=process.dsn,
            lake=places.lake,
            scratch=places.pipeline,
            arguments=arguments,
            master=settings.spark_master,
            memory=settings.spark_memory,
            limit_s=settings.spark_limit_s,
        )
        if done["outcome"] != "succeeded":
            raise InternalError(f"the job {job} was not satisfied: `butlers pipeline status {done['run_id']}` says why")
        return {"run_id": done["run_id"], **done["details"]}

    return run


def service_levels_job(process: Process) -> Job:
    """The last whole hour, and the long error budgets up to its end, which Messenger's judge reads."""
    run = pipeline_jobs(process)

    async def levels(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        end = process.clock.now().replace(minute=0, second=0, microsecond=0)
        return await run("service-levels", Interval(start=end - timedelta(hours=1), end=end))

    return levels
