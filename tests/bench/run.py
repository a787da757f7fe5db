"""`make bench`: the side-by-side tables. Ratios within one run are what counts; absolute times belong to the machine.

    make bench                          all tables
    make bench ARGS="federation"        one of them: kernels, collectives, federation
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BENCH = TOP / "build" / "bench"


def output(command: list, **more) -> str:
    """What a command printed on standard output; its errors pass through when it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=TOP, **more)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def kernels(_: argparse.Namespace) -> None:
    """GB/s of the tensor kernels, by instruction set."""
    print(output([BENCH / "bench_kernels"]), end="")


def collectives(options: argparse.Namespace) -> None:
    """All-reduce and broadcast from Python: backend tn and gloo, alternating in one run."""
    print(output([sys.executable, TOP / "tests" / "bench" / "collectives.py", "--repeat", options.repeat]), end="")


def federation(options: argparse.Namespace) -> None:
    """Seconds per round of the main job, beside Flower's simulation of the same work."""
    ours, theirs = [], []
    pattern = re.compile(r"^result: accuracy=(\S+) .*seconds_per_round=(\S+)", re.MULTILINE)
    for _ in range(options.repeat):
        text = output([sys.executable, TOP / "examples" / "digits" / "run.py", "--out", TOP / "runs" / "bench"])
        accuracy, seconds = pattern.search(text).groups()
        ours.append((float(seconds), float(accuracy)))
        flower = output([TOP / ".venv-flower" / "bin" / "python", TOP / "tests" / "bench" / "flower_digits.py"])
        result = json.loads(flower.strip().splitlines()[-1])
        theirs.append((result["seconds_per_round"], result["accuracy"]))
    print(f"{'digits, 8 clients, 20 rounds':<34}{'s/round':>10}{'min':>9}{'max':>9}{'accuracy':>10}")
    for name, rows in (("torchnative, server, mutual TLS", ours), ("Flower 1.42, simulation (Ray)", theirs)):
        seconds = [row[0] for row in rows]
        print(f"{name:<34}{statistics.median(seconds):>10.3f}{min(seconds):>9.3f}{max(seconds):>9.3f}{rows[-1][1]:>10.4f}")
    ratio = statistics.median(t[0] / o[0] for o, t in zip(ours, theirs))
    print(f"ratio (Flower / torchnative): {ratio:.1f}")


TABLES = {table.__name__: table for table in (kernels, collectives, federation)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="*", help=f"which: {', '.join(TABLES)}; default: all")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each side")
    options = parser.parse_args()
    if unknown := [name for name in options.table if name not in TABLES]:
        parser.error(f"no table is called {unknown[0]}; there are {', '.join(TABLES)}")
    print(f"{os.cpu_count()} cores; medians of {options.repeat} runs, the two sides in turn")
    for name in options.table or TABLES:
        print(f"\n{name}: {TABLES[name].__doc__}", flush=True)
        TABLES[name](options)


if __name__ == "__main__":
    main()
