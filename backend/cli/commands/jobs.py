"""List the jobs, newest first, or show or cancel one."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from backend.common.config.settings import load_settings
from backend.server.log_format import escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A job's id narrows it to one."""
    parser.add_argument("id", nargs="?", help="show this job whole")
    parser.add_argument("--cancel", action="store_true", help="cancel the job named")
    parser.add_argument("--status", help="only these states, with commas")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Prints what was found."""
    if args.cancel and not args.id:
        print("jobs: --cancel needs a job's id", file=sys.stderr)
        return 2
    found = asyncio.run(_ask(args))
    if args.id or args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_line(job) for job in found["jobs"]) or "No jobs yet.")
    return 0


def _line(job: dict[str, Any]) -> str:
    used = (job["receipt"] or {}).get("used") or "-"
    request = job["request"]
    words = request.get("prompt") or (request.get("messages") or [{}])[-1].get("content") or job["model"] or ""
    return f"{job['id']}  {job['status']:<11}  {job['task']:<8}  {used:<8}  {escaped(words)[:60]}"


async def _ask(args: argparse.Namespace) -> dict[str, Any]:
    from backend.cli.client import connect

    async with connect(load_settings({"config": args.config})) as client:
        if args.cancel:
            await client.cancel(args.id)
        if args.id:
            return await client.job(args.id)
        return await client.jobs(status=args.status, limit=args.limit)
