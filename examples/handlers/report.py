#!/usr/bin/env python3
"""Builds a report row by row, with a JSON checkpoint, and stops when told to."""

import json
import os
import signal
import sys

checkpoint = os.fdopen(int(os.environ["TALLYMAN_CHECKPOINT_FD"]), "rb").read()
progress = os.fdopen(int(os.environ["TALLYMAN_PROGRESS_FD"]), "w", buffering=1)
state = json.loads(checkpoint) if checkpoint else {"total": 0}
row = int(os.environ["TALLYMAN_OFFSET"])

stopping = False


def stop(signum, frame):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)

try:
    rows = json.load(sys.stdin)["rows"]
except (ValueError, KeyError, TypeError) as error:
    print(f"payload must be {{\"rows\": [numbers]}}: {error}", file=sys.stderr)
    sys.exit(65)  # rejected

while row < len(rows):
    state["total"] += rows[row]
    row += 1
    # One line, so no newline inside the JSON. Each line costs a round trip:
    # save what is worth not doing twice.
    if row % 100 == 0 or stopping:
        progress.write(f"{row} {json.dumps(state)}\n")
    if stopping:
        sys.exit(75)  # the last line is saved; the next attempt goes on there

json.dump({"total": state["total"], "token": int(os.environ["TALLYMAN_TOKEN"])}, sys.stdout)
