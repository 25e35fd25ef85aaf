"""Times of callables in alternating rounds, and of processes."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
#: A round of calls of one peer takes about this long, so that the clock and a stray interrupt do not count.
SECONDS_PER_ROUND = 0.1


def alternating(peers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median seconds per call of each peer; the peers take turns, so that a busy machine hits all alike."""
    calls = {}
    for name, call in peers.items():
        call(), call()
        start = time.perf_counter()
        call()
        calls[name] = max(1, int(SECONDS_PER_ROUND / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, call in peers.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            times[name].append((time.perf_counter() - start) / calls[name])
    return {name: statistics.median(found) for name, found in times.items()}


def in_process(backend: str, *arguments: str) -> Any:
    """Returns what `python -m benchmarks.speed.worker ARGUMENTS` prints as JSON in its last line; a text if it fails."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.worker", *arguments],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raised = re.findall(r"^(?:\w+\.)*(\w+Error)\b", result.stderr, re.MULTILINE)
        return f"error: {raised[-1] if raised else f'ended with {result.returncode}'}"
    return json.loads(result.stdout.strip().splitlines()[-1])


def quantity(name: str, value: Any) -> str:
    """Returns a figure with its unit: bytes where the row's name says so, else seconds."""
    if not isinstance(value, float | int):
        return str(value)
    if "memory" in name or "bytes" in name:
        return f"{value / 2**20:.2f} MiB"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def ratio_text(row: dict[str, Any], peer: str) -> str:
    """Returns our figure divided by a peer's, as it stands behind the peer's."""
    ours, value = row.get("jaxbridge"), row[peer]
    if peer == "jaxbridge" or not isinstance(value, float | int) or not isinstance(ours, float | int) or not value:
        return ""
    return f" ({ours / value:.2f})"
