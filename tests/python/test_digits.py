"""The main job as a user runs it: the driver, the C server over mutual TLS, real client processes; then with one killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
RESULT = re.compile(
    r"^result: accuracy=(0\.\d{4}) reference=(0\.\d{4}) centralised=(0\.\d{4}) max_diff=(\d\.\de[-+]\d\d)"
    r" rounds=(\d+) clients=(\d+) seconds_per_round=(\d+\.\d{3}) model=(\S+)$",
    re.MULTILINE,
)


def client_pid(driver: int, number: int) -> int:
    """The process of a client of this driver, by its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == driver and b"--number" in words and words[words.index(b"--number") + 1] == str(number).encode():
                return int(folder.name)
    raise AssertionError(f"no process of client {number}")


def run_digits(out: Path, *flags: str, kill_after: int | None = None) -> tuple[str, list[str]]:
    """Runs the example; with ``kill_after`` kills client 3 as soon as that round is reported. Returns its output's text and lines."""
    command = [sys.executable, TOP / "examples" / "digits" / "run.py", "--out", out, *flags]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=TOP)
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if kill_after is not None and line.startswith(f"round {kill_after:>2}/"):
                os.kill(client_pid(process.pid, 3), signal.SIGKILL)
        code = process.wait(60)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    text = "".join(lines)
    assert code == 0, text
    return text, lines


def check(text: str, rounds: int, clients: int) -> None:
    match = RESULT.search(text)
    assert match, text
    accuracy, reference = float(match[1]), float(match[2])
    assert accuracy >= 0.90 and abs(accuracy - reference) < 0.01
    assert float(match[4]) <= 1e-5
    assert (int(match[5]), int(match[6])) == (rounds, clients)
    assert (TOP / match[8]).stat().st_size > 38_000


@pytest.mark.parametrize("mode", ["server", "collective"])
def test_the_main_job_agrees_with_plain_torch(tmp_path, mode):
    text, lines = run_digits(tmp_path / "digits", "--mode", mode)
    check(text, 20, 8)
    assert sum(line.startswith("round ") and "cohort 8" in line for line in lines) == 20
    assert (tmp_path / "digits" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_client_killed_in_round_5_costs_its_updates_and_no_more(tmp_path):
    text, lines = run_digits(tmp_path / "digits", kill_after=4)
    check(text, 20, 8)
    cohorts = [int(re.search(r"cohort (\d)", line)[1]) for line in lines if line.startswith("round ")]
    assert len(cohorts) == 20 and cohorts[:4] == [8] * 4 and cohorts[-1] == 7
    assert "client-3 ended with exit code -9; the federation goes on without it" in text
