"""The tables of the job history as numbered migrations, and the SQL statements for jobs and events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from backend.common.types import Event, JsonObject

Row = JsonObject
Statement = tuple[str, list[Any]]
Change = tuple[str, Row, list[Event]]  # a job's id, its new fields, its new events

MIGRATIONS = (
    """
    CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL, model TEXT,
        status TEXT NOT NULL, created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT, caller TEXT NOT NULL,
        request TEXT NOT NULL, output TEXT NOT NULL, error TEXT, receipt TEXT,
        reserved INTEGER NOT NULL, idempotency_key TEXT, request_hash TEXT
    ) STRICT;
    CREATE INDEX jobs_status ON jobs (status);
    CREATE INDEX jobs_key ON jobs (idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE TABLE events (
        job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE, first INTEGER NOT NULL, pack TEXT NOT NULL,
        PRIMARY KEY (job, first)
    ) STRICT, WITHOUT ROWID;
    """,
    "CREATE INDEX jobs_ended ON jobs (ended_at);",  # the sweep queries it every minute
)
COLUMNS = (
    "id task model status created_at started_at ended_at caller request output error receipt reserved "
    "idempotency_key request_hash"
).split()
_JSON = ("request", "output", "error", "receipt")


def insert_job_sql(job: Row) -> Statement:
    """Return the statement that adds a job."""
    values = encode_row(job)
    marks = ", ".join("?" * len(COLUMNS))
    return f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({marks})", [values.get(name) for name in COLUMNS]


def insert_events_sql(job_id: str, events: Iterable[Event]) -> list[Statement]:
    """Return the statements that append events; empty without events. The same events again, and more, replace them."""
    pack = [[event.id, event.event, event.data] for event in events]
    if not pack:
        return []
    # Late events of a job that was deleted meanwhile are dropped.
    sql = "REPLACE INTO events (job, first, pack) SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM jobs WHERE id = ?)"
    return [(sql, [job_id, pack[0][0], json.dumps(pack, separators=(",", ":")), job_id])]


def update_job_sql(job_id: str, fields: Row, events: Iterable[Event]) -> list[Statement]:
    """Return the statements that change a job and append events."""
    statements = insert_events_sql(job_id, events)
    if fields:
        values = encode_row(fields)
        changes = ", ".join(f"{name} = ?" for name in values)
        statements.append((f"UPDATE jobs SET {changes} WHERE id = ?", [*values.values(), job_id]))
    return statements


def encode_row(row: Row) -> Row:
    """Return the row with its structured members as JSON text."""
    return {k: json.dumps(v, separators=(",", ":")) if k in _JSON and v is not None else v for k, v in row.items()}


def decode_row(row: Row) -> Row:
    """Return the row with its JSON members parsed."""
    return {k: json.loads(v) if k in _JSON and v is not None else v for k, v in row.items()}
