"""List the jobs, newest first, or show or cancel one."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from backend.cli.commands._settings import settings_from
from backend.common.types import JsonObject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job id and the filters of the list."""
    parser.add_argument("id", nargs="?", help="print this job with all its fields")
    parser.add_argument("--cancel", action="store_true", help="cancel the job with this id")
    parser.add_argument("--status", help="list only jobs with these statuses, separated by commas")
    parser.add_argument("--limit", type=int, default=20, help="maximum number of jobs to list (default: 20)")
    parser.add_argument("--json", action="store_true", help="print the answer of GET /api/jobs")


def run(args: argparse.Namespace) -> int:
    """Print one job as JSON, or the list."""
    if args.cancel and not args.id:
        print("jobs: --cancel needs a job's id", file=sys.stderr)
        return 2
    answer = asyncio.run(_request(args))
    if args.id or args.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_line(job) for job in answer["jobs"]) or "No jobs yet.")
    return 0


def _line(job: JsonObject) -> str:
    from backend.common.clean_text import escape

    used = (job["receipt"] or {}).get("used") or "-"
    request = job["request"]
    title = request.get("prompt") or (request.get("messages") or [{}])[-1].get("content") or job["model"] or ""
    return f"{job['id']}  {job['status']:<11}  {job['task']:<8}  {used:<8}  {escape(title)[:60]}"


async def _request(args: argparse.Namespace) -> JsonObject:
    from backend.cli.client import connect

    async with connect(settings_from(args)) as client:
        if args.cancel:
            await client.cancel(args.id)
        if args.id:
            return await client.job(args.id)
        return await client.jobs(status=args.status, limit=args.limit)
