"""The main job: federate the digits model over several processes and compare it with a plain-torch reference.

`make run` calls this with a server and mutual TLS; `make run MODE=collective` with torchrun and no server.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import reference
import task

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
SHUT_DOWN_SECONDS = 30
NOISE = "clip=0.5,noise=1"  # of --dp: eight clients hide little of each other, so it costs accuracy


class Failed(Exception):
    """The run cannot go on; the text is for a person."""


class Processes:
    """The processes that this run started; whatever happens, they end with it."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.started = logs, {}
        logs.mkdir(parents=True)

    def start(self, name: str, command: list) -> subprocess.Popen:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with open(self.logs / f"{name}.log", "wb") as log:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.started[name] = process
        return process

    def tail(self, name: str) -> str:
        lines = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()[-12:]
        return "\n".join(f"  {name}: {line}" for line in lines)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_) -> None:
        for process in self.started.values():
            if process.poll() is None:
                process.terminate()
        for process in self.started.values():
            try:
                process.wait(SHUT_DOWN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def show(record: dict, rounds: int) -> None:
    """One line of progress."""
    loss = "-" if record["loss"] is None else f"{record['loss']:.4f}"
    print(
        f"round {record['round']:>2}/{rounds}  cohort {len(record['clients'])}  loss {loss}  accuracy {record['accuracy']:.4f}"
        f"  {record['seconds']:.3f} s  {record['bytes']:,} bytes",
        flush=True,
    )


def with_server(out: Path, rounds: int, clients: int, dp: str | None) -> list[dict]:
    """Starts the server and the clients and follows the rounds until the server ends. Returns a record for each round."""
    state, certs = out / "state", out / "certs"
    initial = out / "initial.safetensors"
    save_file(task.make_model().state_dict(), initial)
    tools = TOP / "build" / "bin"
    subprocess.run(
        [tools / "torchnative-ctl", "cert", "init", "--dir", certs, "--clients", str(clients)], check=True, stdout=subprocess.DEVNULL
    )
    with Processes(out / "logs") as processes:
        server = processes.start(
            "server",
            [tools / "torchnative-server", "--listen", "tls+tcp://localhost:0", "--state", state, "--model", initial]
            + ["--rounds", rounds, "--start-clients", clients, "--min-clients", 1, "--keep", rounds + 1]
            + ["--tls-cert", certs / "server.pem", "--tls-key", certs / "server.key", "--tls-ca", certs / "ca.pem"]
            + (["--dp", dp] if dp else []),
        )
        url = wait_for_endpoint(server, processes, state / "endpoint")
        print(f"server    {url} with mutual TLS, state in {shown(state)}", flush=True)
        for number in range(clients):
            command = [sys.executable, HERE / "client.py", "--number", number, "--server", url, "--certs", certs]
            processes.start(f"client-{number}", command + ["--data", out / "data" / f"client-{number}.safetensors"])
        print(f"clients   {clients} processes, logs in {shown(processes.logs)}", flush=True)
        records = []
        for record in follow(state, server, processes):
            show(record, rounds)
            records.append(record)
        if server.wait() != 0 or len(records) != rounds:
            raise Failed(f"the server ended with exit code {server.returncode} after {len(records)} rounds\n{processes.tail('server')}")
    shutil.copyfile(state / "models" / f"round-{rounds:06d}.safetensors", out / "model.safetensors")
    return records


def wait_for_endpoint(server: subprocess.Popen, processes: Processes, path: Path) -> str:
    """The server's URL, once it listens."""
    while not path.exists():
        if server.poll() is not None:
            raise Failed(f"the server ended with exit code {server.returncode} before it listened\n{processes.tail('server')}")
        time.sleep(0.01)
    return path.read_text().split()[0]


def follow(state: Path, server: subprocess.Popen, processes: Processes) -> Iterator[dict]:
    """The committed rounds as they appear in the server's journal, with the accuracy of each round's model."""
    _, _, x_test, y_test = task.load()
    model = task.make_model()
    journal = sqlite3.connect(f"file:{state / 'state.db'}?mode=ro", uri=True)
    gone: set[str] = set()
    seen = 0
    while True:
        over = server.poll() is not None
        for name, process in processes.started.items():
            if name != "server" and name not in gone and process.poll() not in (None, 0):
                gone.add(name)
                print(f"{name} ended with exit code {process.returncode}; the federation goes on without it", flush=True)
        if len(gone) == len(processes.started) - 1:
            raise Failed(f"all clients are gone\n{processes.tail('client-0')}")
        query = "SELECT round, attempt, seconds, bytes FROM rounds WHERE state = 'committed' AND round > ? ORDER BY round"
        for number, attempt, seconds, size in journal.execute(query, (seen,)).fetchall():
            model.load_state_dict(load_file(state / "models" / f"round-{number:06d}.safetensors"))
            clients, loss = participants(journal, number, attempt)
            yield {
                "round": number,
                "clients": clients,
                "loss": loss,
                "accuracy": task.accuracy(model, x_test, y_test),
                "seconds": seconds,
                "bytes": size,
            }
            seen = number
        if over:
            return
        time.sleep(0.02)


def participants(journal: sqlite3.Connection, number: int, attempt: int) -> tuple[list[int], float | None]:
    """Whose updates a round counted, and their example-weighted loss."""
    query = "SELECT client, examples, loss FROM updates WHERE round = ? AND attempt = ? ORDER BY client"
    rows = journal.execute(query, (number, attempt)).fetchall()
    known = [(examples, loss) for _, examples, loss in rows if loss is not None]
    examples = sum(count for count, _ in known)
    mean = sum(count * loss for count, loss in known) / examples if examples else None
    return [int(client.rsplit("-", 1)[1]) - 1 for client, _, _ in rows], mean


def with_torchrun(out: Path, rounds: int, clients: int, dp: str | None) -> list[dict]:
    """Runs collective.py under torchrun and follows what rank 0 prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", clients]
    command += [HERE / "collective.py", "--rounds", rounds, "--data", out / "data", "--out", out]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    records = []
    log = out / "torchrun.log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
        try:
            for line in process.stdout:
                records.append(json.loads(line))
                show(records[-1], rounds)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait()
    if code != 0 or len(records) != rounds:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        raise Failed(f"torchrun ended with exit code {code} after {len(records)} rounds\n{tail}")
    return records


def picture(path: Path, records: list[dict], centralised: float) -> None:
    """Accuracy per round as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([r["round"] for r in records], [r["accuracy"] for r in records], marker="o", markersize=4, label="federated")
    axes.axhline(centralised, linestyle="--", color="grey", label="centralised")
    axes.set(xlabel="round", ylabel="accuracy on the test part", ylim=(0, 1), title="digits, non-IID clients, FedAvg")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("server", "collective"), default="server")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--dp", metavar="SPEC", nargs="?", const=NOISE, help=f"central differential privacy, as the server's --dp (default: {NOISE})"
    )
    parser.add_argument("--out", type=Path, default=TOP / "runs" / "digits", help="made anew at each run")
    options = parser.parse_args()
    if options.rounds < 1 or options.clients < 1:
        parser.error("--rounds and --clients must be at least 1")
    if options.dp and options.mode != "server":
        parser.error("--dp needs the server; over a group give the Engine privacy=[federated.CentralDP(...)]")

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    task.write_shares(out / "data", options.clients)
    runner = with_server if options.mode == "server" else with_torchrun
    try:
        records = runner(out, options.rounds, options.clients, options.dp)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; all processes of this run are ended", file=sys.stderr)
        return 130

    _, _, x_test, y_test = task.load()
    final = load_file(out / "model.safetensors")
    plain = reference.federation([record["clients"] for record in records], options.clients)
    central = task.accuracy(reference.centralised(options.rounds), x_test, y_test)
    if options.dp:  # noise is a difference from the reference that nobody can tell from a wrong one
        mark = spent(out / "state")
    else:
        difference = max((final[name].double() - value.double()).abs().max().item() for name, value in plain.state_dict().items())
        mark = f"max_diff={difference:.1e}"
    picture(out / "accuracy.png", records, central)
    seconds = sum(record["seconds"] for record in records) / len(records)
    print(f"picture   {shown(out / 'accuracy.png')}")
    print(
        f"result: accuracy={records[-1]['accuracy']:.4f} reference={task.accuracy(plain, x_test, y_test):.4f}"
        f" centralised={central:.4f} {mark} rounds={len(records)} clients={options.clients}"
        f" seconds_per_round={seconds:.3f} model={shown(out / 'model.safetensors')}"
    )
    return 0


def spent(state: Path) -> str:
    """What the job's ledger says."""
    command = [TOP / "build" / "bin" / "torchnative-ctl", "dp", "ledger", "--state", state, "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return f"epsilon={told['epsilon']:.4g} delta={told['delta']:g}"


def shown(path: Path) -> str:
    """A path as a person in the project's folder would type it."""
    return os.path.relpath(path, os.getcwd())


if __name__ == "__main__":
    sys.exit(main())
