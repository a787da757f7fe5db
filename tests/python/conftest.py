"""Worlds of ranks that stay up between tests, so that a test costs a collective and not the start of torch in every process."""

import multiprocessing
import multiprocessing.connection
import os
import pickle
import tempfile
import time
import traceback

import pytest

START = 120.0  # seconds for all ranks to be there
RUN = 60.0  # seconds for one function on all ranks


def _serve(rank, size, path, pipe):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("tn", store=dist.FileStore(path, size), rank=rank, world_size=size)
    pipe.send((True, "ready"))
    while True:
        task = pipe.recv()
        if task is None:
            break
        function, arguments = pickle.loads(task)
        try:
            answer = (True, function(rank, size, *arguments))
        except BaseException:  # noqa: BLE001: reported by the test
            answer = (False, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()


class World:
    def __init__(self, size):
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.size, self.pipes, self.processes = size, [], []
        os.environ["OMP_NUM_THREADS"] = "1"
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, f"{self.folder.name}/store", theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self._collect(START)

    def _collect(self, seconds):
        """One answer of each rank, by rank. The first that raised ends it: the others may be waiting for that rank."""
        deadline, answers = time.monotonic() + seconds, {}
        while len(answers) < self.size:
            missing = [rank for rank in range(self.size) if rank not in answers]
            ready = multiprocessing.connection.wait([self.pipes[rank] for rank in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                pytest.fail(f"ranks {missing} of {self.size} gave no answer within {seconds:.0f} s")
            for rank in missing:
                if self.pipes[rank] in ready:
                    answers[rank] = self._answer(rank)
        return [answers[rank] for rank in range(self.size)]

    def _answer(self, rank):
        try:
            ok, value = self.pipes[rank].recv()
        except EOFError:
            ok, value = False, "died"
        if not ok:
            self.kill()
            pytest.fail(f"rank {rank} of {self.size}:\n{value}")
        return value

    def run(self, function, *arguments, seconds=RUN):
        """function(rank, size, *arguments) on every rank; what they returned, by rank. A rank that raises fails the test, and its world."""
        task = pickle.dumps((function, arguments))
        for pipe in self.pipes:
            pipe.send(task)
        return self._collect(seconds)

    def stop(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)
        codes = [process.exitcode for process in self.processes]
        self.kill()
        return codes

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        self.processes = []
        self.folder.cleanup()


@pytest.fixture(scope="session")
def _worlds():
    worlds = {}
    yield worlds
    codes = {size: world.stop() for size, world in worlds.items() if world.processes}
    assert all(code == 0 for found in codes.values() for code in found), f"ranks did not end cleanly: {codes}"


def _of(worlds, size):
    if size not in worlds or not worlds[size].processes:
        worlds[size] = World(size)
    return worlds[size]


@pytest.fixture(params=[1, 2, 4], ids=lambda size: f"world{size}")
def world(request, _worlds):
    """A world of 1, 2 and 4 ranks in turn."""
    return _of(_worlds, request.param)


@pytest.fixture(params=[1, 2, 3, 4, 7], ids=lambda size: f"world{size}")
def any_world(request, _worlds):
    """The same, with sizes that are no powers of two: where algorithms differ by the size."""
    return _of(_worlds, request.param)


@pytest.fixture
def world2(_worlds):
    return _of(_worlds, 2)


@pytest.fixture
def world3(_worlds):
    return _of(_worlds, 3)


@pytest.fixture
def world4(_worlds):
    return _of(_worlds, 4)
