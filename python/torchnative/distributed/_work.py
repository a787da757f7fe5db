"""Work: what torch.distributed hands to its callers, over native works.

C++ callers reach `wait` and `get_future` only; everything else is for Python.
"""

import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist

from torchnative import _tn


class TimeoutTN(dist.DistBackendError, TimeoutError):
    """An operation or a wait took too long. A RuntimeError, as torch's callers expect, and a TimeoutError."""


def translated(error):
    """The error of the native module as torch's callers know it."""
    if isinstance(error, _tn.PeerError):
        new = dist.DistBackendError(str(error))
    elif isinstance(error, TimeoutError):
        new = TimeoutTN(f"{error}; give a longer timeout if those ranks are only slow")
    else:
        return error
    new.code = getattr(error, "code", None)
    new.__cause__ = error
    return new


class WorkTN(dist._Work):
    """One operation of torch.distributed: one native work, or several that were issued together."""

    def __init__(self, works, tensors, name, record=None, finish=None):
        super().__init__()
        self._works = works
        self._tensors = tensors
        self._name = name
        self._plain = self._typed = None
        self._finish = finish  # what remains to be done with what arrived, once, by whoever sees the end first
        self._finishing = threading.Lock() if finish is not None else None
        self._record = record
        if record is not None:
            # Left by the thread that sees the end, so that the event spans the operation and shows as asynchronous.
            record.__enter__()
            self._plain = self._pending()

    def wait(self, timeout=None):
        """Until it is done. c10d's meaning of the time-out: None and 0 are for ever (the operation has the group's own)."""
        self._wait(timeout.total_seconds() if timeout is not None else 0.0)
        if self._record is not None:
            self._plain.wait()  # or the profiler might end before the event does
        return True

    def _wait(self, seconds):
        try:
            if seconds > 0:
                deadline = time.monotonic() + seconds
                for work in self._works:
                    work.wait(max(0.0, deadline - time.monotonic()))
            else:
                for work in self._works:
                    work.wait()
        except (_tn.PeerError, TimeoutError) as error:
            raise translated(error) from error
        if self._finishing is not None:
            with self._finishing:
                finish, self._finish = self._finish, None
                if finish is not None:
                    finish()

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return all(work.done() for work in self._works)

    def is_success(self):
        return self.is_completed() and self._error() is None

    def exception(self):
        error = self._error()
        return translated(error) if error is not None else None

    def _error(self):
        for work in self._works:
            error = work.error()
            if error is not None:
                return error
        return None

    def result(self):
        """The tensors that the operation wrote, once it is done."""
        if not self.is_completed():
            raise RuntimeError(f"{self._name} is not done: wait() first")
        self._wait(0.0)
        return self._tensors

    def source_rank(self):
        return self._works[0].source()

    _source_rank = source_rank

    def abort(self):
        for work in self._works:
            work.abort()

    # ---- Future ----
    #
    # A Future made in Python holds a Python object. torch's built-in C++ hooks (FP16 compression) want one that holds a list of tensors, and
    # those can only be made by TorchScript: ready-made (torch._C.fork runs its function at once), or as the fork of a script that waits for the
    # other Future. Such a script goes on in TorchScript's small pool, where a Python callback that waits for another Future (PowerSGD) could
    # hold the last thread. So Python callers get the plain Future, completed by our own threads, and C++ callers the typed one.

    def get_future(self):
        from_python = _called_from_python()
        if self._plain is not None and from_python:
            return self._plain
        if self._tensors and self._typed is None and self.is_success():
            self._wait(0.0)
            self._typed = torch._C.fork(lambda: self._tensors)
        if self._typed is not None:
            return self._typed
        if self._plain is None:
            self._plain = self._pending()
        if from_python or not self._tensors:
            return self._plain
        self._typed = _typed_future(self._plain, self._tensors)
        return self._typed

    def _pending(self):
        base = torch.futures.Future()

        def outcome(_):
            if self._record is not None:
                self._record.__exit__(None, None, None)
                self._record = None
            self._wait(0.0)  # all of them are done: raises what they ended with
            return self._tensors

        future = base.then(outcome)
        # Operations of one group end in the order in which they were issued, so the last one's end is the end of all.
        self._works[-1].on_done(lambda _: base.set_result(None))
        return future


def _called_from_python():
    """Whether get_future was called by Python code: then the calling frame's code names it. From C++ the frame is whatever called into C++
    last (the backward pass, say), or there is none."""
    try:
        return "get_future" in sys._getframe(2).f_code.co_names
    except ValueError:
        return False


_typed_fork = None


def _typed_future(future, tensors):
    global _typed_fork
    if _typed_fork is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and here without another way
            from torchnative.distributed import _script

            _typed_fork = _script.typed_fork()
    return _typed_fork(future, tensors)
