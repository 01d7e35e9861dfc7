"""Which MLflow store a study is kept in, whether it can be had, and MLflow's own habits switched off."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}
TIMEOUT = 5.0  # seconds to wait for a server to answer, or for a lock to go


class StoreError(Exception):
    """The store cannot be had now: locked, down or unreachable."""


def store_uri(results: Path | str) -> str:
    """MLFLOW_TRACKING_URI where it is set, else SQLite beside the results (absolute: MLflow's own default is the
    folder it happens to be started in)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(results).resolve() / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in PORTS


def shown(uri: str) -> str:
    """`uri` without a user's name and password."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl() if is_server(uri) else uri


def probe(uri: str) -> None:
    """Raise StoreError where the store is not reachable within TIMEOUT; MLflow itself would try for minutes."""
    parts = urlsplit(uri)
    if parts.scheme in PORTS:
        address = (parts.hostname or "", parts.port or PORTS[parts.scheme])
        try:
            socket.create_connection(address, timeout=TIMEOUT).close()
        except OSError as error:
            raise StoreError(f"{shown(uri)}: not reachable ({error})") from None
    elif parts.scheme == "sqlite":
        path = Path(uri.removeprefix("sqlite:///"))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: cannot be written ({error})") from None


def client(uri: str) -> Any:
    """An MlflowClient for `uri`, bounded in time and silent. Imports MLflow (2 s)."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.pop("MLFLOW_RUN_ID", None)  # would take the place of our run ids
    import logging

    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri)
