"""Collectives from Python, backend tn beside gloo: both groups in the same processes, alternating, medians.

A first, small form of the comparison: operations all_reduce and broadcast of float32 over tcp on one host.
"""

import argparse
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = {"4 B": 1, "1 KiB": 256, "1 MiB": 1 << 18, "16 MiB": 1 << 22}
OPERATIONS = {"all_reduce": lambda t, g: dist.all_reduce(t, group=g), "broadcast": lambda t, g: dist.broadcast(t, 0, group=g)}


def timed(operation, tensor: torch.Tensor, group, count: int) -> float:
    """Seconds per call, on the slowest part of this rank's clock."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(count):
        operation(tensor, group)
    return (time.perf_counter() - start) / count


def rank_main(rank: int, world: int, meeting: str, repeat: int, rows) -> None:
    import torchnative.distributed  # noqa: F401

    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    groups = {"tn": dist.new_group(backend="tn"), "gloo": dist.new_group(backend="gloo")}
    for name, operation in OPERATIONS.items():
        for label, elements in SIZES.items():
            tensor = torch.zeros(elements)
            count = 200 if elements <= 256 else 20 if elements <= 1 << 18 else 4
            times: dict[str, list[float]] = {"tn": [], "gloo": []}
            for backend, group in groups.items():
                timed(operation, tensor, group, 3)
            for _ in range(repeat):
                for backend, group in groups.items():
                    times[backend].append(timed(operation, tensor, group, count))
            if rank == 0:
                rows.put((name, label, world, times))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    context = mp.get_context("spawn")
    print(f"{'operation':<12}{'size':>8}{'ranks':>7}{'tn µs':>12}{'gloo µs':>12}{'gloo / tn':>11}")
    for world in (2, 4):
        rows = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (world, f"{folder}/store", options.repeat, rows)
            mp.start_processes(rank_main, arguments, nprocs=world, start_method="spawn")
        while not rows.empty():
            name, label, ranks, times = rows.get()
            ours, theirs = (statistics.median(times[backend]) * 1e6 for backend in ("tn", "gloo"))
            print(f"{name:<12}{label:>8}{ranks:>7}{ours:>12.0f}{theirs:>12.0f}{theirs / ours:>11.2f}")


if __name__ == "__main__":
    main()
