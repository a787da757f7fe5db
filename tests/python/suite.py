"""PyTorch's own DistributedTest on gloo and on tn, side by side: python tests/python/suite.py [--world 2,3,4]

Three runs of torch_suite.py for each world size: gloo, the reference; tn under its own name; and tn in masquerade, where gloo's class is built of it,
with the profiler's assertions. It fails unless every test that gloo passes here passes in both runs of tn. What docs/torch_suite.md lists for one of
them, because torch decides there by the backend's name, must pass in the other.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
LISTED = HERE.parent.parent / "docs" / "torch_suite.md"
RUNS = {"gloo": {"BACKEND": "gloo"}, "tn": {"BACKEND": "tn"}, "masquerade": {"BACKEND": "gloo", "MASQUERADE": "1", "PROFILE": "1"}}
SECONDS = 1200  # for one run; each test has a time-out of its own


def run(name, world, folder, tests):
    """The outcome of each test of one run."""
    report = folder / f"{name}-{world}.xml"
    log = folder / f"{name}-{world}.log"
    chosen = [f"{HERE / 'torch_suite.py'}::TestSpawn::{test}" for test in tests] if tests else [str(HERE / "torch_suite.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *chosen]
    with log.open("w") as output:
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False,
                       env={**os.environ, **RUNS[name], "WORLD_SIZE": str(world)})
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcomes[case.get("name")] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return outcomes


def listed():
    """The pairs (run, test) that the page lists: what torch decides by the backend's name."""
    return set(re.findall(r"^\| (tn|masquerade) \| `(test_\w+)` \|", LISTED.read_text(), re.MULTILINE))


def judge(world, outcomes, by_name):
    """What is wrong, a line each."""
    wrong = []
    for test in [test for test, outcome in outcomes["gloo"].items() if outcome == "passed"]:
        for name, other in (("tn", "masquerade"), ("masquerade", "tn")):
            ours = outcomes[name].get(test, "missing")
            if (name, test) in by_name:
                if ours == "passed":
                    wrong.append(f"world {world}: {test} passes in run {name}; it need not be in {LISTED.name} any more")
                elif outcomes[other].get(test) != "passed":
                    wrong.append(f"world {world}: {test} is {ours} in run {name} and does not pass in run {other} either")
            elif ours != "passed":
                wrong.append(f"world {world}: {test} passes on gloo and is {ours} in run {name}")
    if "passed" not in outcomes["gloo"].values():
        wrong.append(f"world {world}: gloo passed nothing, so nothing was compared")
    return wrong


def table(worlds, results):
    letter = {"passed": "pass", "failed": "FAIL", "skipped": "skip", "missing": "none"}
    tests = sorted({test for world in worlds for test, outcome in results[world]["gloo"].items() if outcome == "passed"})
    print(f"{'':62}" + "".join(f"{f'world {world}':18}" for world in worlds))
    print(f"{'what gloo passes':62}" + f"{'gloo tn   masq':18}" * len(worlds))
    for test in tests:
        cells = [" ".join(letter[results[world][name].get(test, "missing")] for name in RUNS) for world in worlds]
        print(f"{test:62}" + "".join(f"{cell:18}" for cell in cells))
    for world in worlds:
        counts = []
        for name in RUNS:
            outcomes = [results[world][name].get(test, "missing") for test in tests if results[world]["gloo"].get(test) == "passed"]
            counts.append(f"{name}: " + ", ".join(f"{outcomes.count(kind)} {kind}" for kind in letter if kind in outcomes))
        print(f"world {world}  " + "; ".join(counts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="2,3,4", help="sizes, by commas")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--keep", type=Path, help="folder for the logs and reports")
    arguments = parser.parse_args()
    worlds = [int(size) for size in arguments.world.split(",")]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = {world: {} for world in worlds}
        for world, outcomes in zip(worlds, pool.map(lambda world: run("gloo", world, folder, None), worlds)):
            results[world]["gloo"] = outcomes
        passed = {world: [test for test, outcome in results[world]["gloo"].items() if outcome == "passed"] for world in worlds}
        ours = [(name, world) for world in worlds for name in RUNS if name != "gloo"]
        for (name, world), outcomes in zip(ours, pool.map(lambda one: run(*one, folder, passed[one[1]]), ours)):
            results[world][name] = outcomes
        table(worlds, results)
        by_name = listed()
        wrong = [line for world in worlds for line in judge(world, results[world], by_name)]
        for line in wrong:
            print(line, file=sys.stderr)
        if wrong and not arguments.keep:
            print("--keep FOLDER keeps the logs", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
