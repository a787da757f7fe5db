"""Worlds of real processes for the tests: a function runs as every rank, and its return values come back by rank.

The functions live in test modules; processes are spawned (NNG and fork do not go together).
"""

import os
import tempfile
import traceback

import torch.multiprocessing as mp

DEADLINE = 120  # seconds: a rank that takes longer hangs


def _entry(rank, function, world, path, backend, results, arguments):
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(backend, store=dist.FileStore(path, world), rank=rank, world_size=world)
        value = function(rank, world, *arguments)
        dist.destroy_process_group()
        results.put((rank, value, None))
    except BaseException as error:  # the test decides what an error means
        results.put((rank, f"{type(error).__name__}: {error}", traceback.format_exc()))


def run_world(function, world: int, *arguments, backend: str = "tn", errors: bool = False) -> list:
    """What ``function(rank, world, *arguments)`` returned on each rank.

    A rank that raises fails the caller with that rank's traceback; with ``errors`` its value is "TypeName: text".
    """
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        common = (function, world, os.path.join(folder, "store"), backend, results, arguments)
        processes = [context.Process(target=_entry, args=(rank, *common), daemon=True) for rank in range(world)]
        for process in processes:
            process.start()
        try:
            collected = dict([(rank, (value, trace)) for rank, value, trace in (results.get(timeout=DEADLINE) for _ in range(world))])
            for process in processes:
                process.join(DEADLINE)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
    if not errors:
        for rank in range(world):
            value, trace = collected[rank]
            assert trace is None, f"rank {rank}:\n{trace}"
    return [collected[rank][0] for rank in range(world)]
