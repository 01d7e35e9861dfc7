"""Tracking: every job writes an event log; `tokencredit track sync` brings the logs into an MLflow store."""

from tokencredit.tracking.events import EventLog, flatten

__all__ = ["EventLog", "flatten"]
