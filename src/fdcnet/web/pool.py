"""Worker processes that compute predictions. Token, limits, lessons and writes stay in the server's own process."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from queue import Queue
from typing import Any

from fdcnet.data.pixels import num_cores
from fdcnet.web.guard import Refused

TRIES = 2  # with another process each: a photo may be what ends it

Worker = subprocess.Popen[bytes]


class WorkerPool:
    """Thread-safe. A worker that has died is replaced."""

    def __init__(self, num_workers: int, device: str, engine: str = "torch") -> None:
        num_threads = max(1, num_cores() // num_workers)
        self._command = [sys.executable, "-P", "-m", "fdcnet.web.worker", device, engine, str(num_threads)]
        self._free: Queue[Worker] = Queue()
        self._running: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        for _ in range(num_workers):
            self._free.put(self._start())

    def predict(self, model: Path, photo: bytes, **question: Any) -> dict[str, Any]:
        """What `ServedModel.predict` returns for these arguments."""
        line = json.dumps({"model": str(model), "num_bytes": len(photo), **question})
        worker = self._free.get()
        try:
            for _ in range(TRIES):
                if answer := _ask(worker, line.encode() + b"\n" + photo):
                    return _prediction(json.loads(answer))
                worker = self._replace(worker)
        finally:
            self._free.put(worker)
        raise Refused(503, "The process that answers for photos has stopped.", "Try again, or send another photo.")

    def close(self) -> None:
        """Workers write nothing, so they are stopped without waiting for their answers."""
        with self._lock:
            self._closed = True
            for worker in self._running:
                _stop(worker)

    def _start(self) -> Worker:
        # A session of its own: Ctrl-C reaches the server alone, which then stops its workers.
        worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._running.add(worker)
        return worker

    def _replace(self, worker: Worker) -> Worker:
        with self._lock:
            if self._closed:
                raise Refused(503, "The server is stopping.", "Try again when it runs.")
            self._running.discard(worker)
            _stop(worker)
            return self._start()


def _ask(worker: Worker, question: bytes) -> bytes:
    """-> the answer, or nothing if the worker has died"""
    assert worker.stdin and worker.stdout
    try:
        worker.stdin.write(question)
        worker.stdin.flush()
        answer = worker.stdout.readline()
    except OSError:
        return b""
    return answer if answer.endswith(b"\n") else b""


def _prediction(answer: dict[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        raise Refused(*answer["refused"])
    prediction: dict[str, Any] = answer["prediction"]
    return prediction


def _stop(worker: Worker) -> None:
    worker.kill()
    worker.wait()
