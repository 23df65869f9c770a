"""How the page of `dmb serve` holds 50 visitors who call at once: are calls lost, how long do they wait, memory.

A server of its own on this machine, with a model of digits that has not been trained; every visitor asks for 16 samples
of 16 steps, twelve times. Prints median and worst wait beside the time of a call alone, and the memory of the server.
It keeps films of 100 visitors and answers to 400, so memory grows with the first eight rounds, and must not later.
Takes a few minutes on two idle cores.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx

from dmb.app.recipes import recipe
from dmb.app.runs import Run

VISITORS, ROUNDS, LONGEST = 50, 12, 120.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, chosen = Path(folder) / "run", recipe("digits")
        data = chosen.data.load()
        Run.create(path, chosen, data)
        chosen.build(data).write(path)
        command = [sys.executable, "-m", "dmb", "serve", str(path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                measure(server)
            finally:
                server.terminate()


def measure(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    [address] = re.findall(r"http://\S+", server.stdout.readline())
    with httpx.Client(base_url=address, timeout=LONGEST, limits=httpx.Limits(max_connections=VISITORS)) as client:
        print(f"one visitor: {min(call(client, seed) for seed in range(5)):.2f} s a call")
        before = memory(server.pid)
        for number in range(1, ROUNDS + 1):
            with ThreadPoolExecutor(VISITORS) as pool:
                began = time.perf_counter()
                waits = list(pool.map(lambda seed: call(client, seed), range(VISITORS)))
                took = time.perf_counter() - began
            kept = [wait for wait in waits if wait == wait]
            print(
                f"round {number}: {VISITORS} visitors, {VISITORS - len(kept)} lost; wait median {median(kept):.2f} s, "
                f"worst {max(kept):.2f} s; {VISITORS / took:.1f} calls per second; memory {memory(server.pid):.0f} MB "
                f"({memory(server.pid) - before:+.0f})",
                flush=True,
            )


def call(client: httpx.Client, seed: int) -> float:
    """Seconds until 16 samples were there; nan if they never were."""
    began = time.perf_counter()
    joined = client.post("/gradio_api/call/draw", json={"data": [16, 16, 1.0, "ancestral", seed, None]})
    if joined.status_code != 200:
        return float("nan")
    answer = client.get(f"/gradio_api/call/draw/{joined.json()['event_id']}").text
    *_, last = answer.strip().split("\n\n")
    event, _, content = last.partition("\ndata: ")
    done = event == "event: complete" and "data:image/png" in json.loads(content)[1]
    return time.perf_counter() - began if done else float("nan")


def memory(process: int) -> float:
    """Resident memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024


if __name__ == "__main__":
    main()
