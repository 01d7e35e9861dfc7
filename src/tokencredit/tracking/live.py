"""Live logging to a tracking server, from a thread that the job never waits for.

Only where MLFLOW_TRACKING_URI names a server: a SQLite store is filled by `tokencredit track sync` alone. The
thread sends what the event log has gained; a server that does not answer is given up for this job (the sync at
the end of the study makes good).
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tokencredit.tracking.store import is_server, store_uri
from tokencredit.tracking.sync import Syncer

EVERY = 20.0  # seconds between two looks at the log
LAST = 10.0  # seconds granted at the end of the job


class Live:
    """Context manager around a job; does nothing where no server is set."""

    def __init__(self, results: Path | str | None, log: Path | str | None, every: float = EVERY):
        self._log, self._every = log, every
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        uri = store_uri(results) if results is not None else ""
        if log is not None and results is not None and is_server(uri):
            self._syncer = Syncer(results, uri)
            self._thread = threading.Thread(target=self._run, daemon=True, name="live tracking")

    def __enter__(self) -> Live:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(LAST)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(self._every)
            try:
                receipt = self._syncer.take([Path(str(self._log))], whole=False)
                if receipt.errors:
                    raise RuntimeError(receipt.errors[0])
            except Exception as error:  # the boundary: a server never stops or slows a job
                print(f"warning: live tracking given up for this job: {error}", file=sys.stderr)
                return
