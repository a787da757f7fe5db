"""The threads that run callbacks of finished works.

A callback may issue a collective and wait for its Future (torch's PowerSGD hook does), so one thread is not enough: whoever takes a callback
while no other thread waits for one starts another first. Threads that find nothing to do for a while end, but the last one stays.
"""

import os
import threading

from torchnative import _tn

_IDLE_SECONDS = 5.0
_lock = threading.Lock()
_threads = 0


def start():
    """At least one thread waits, or will. Called by Work.on_done."""
    if _threads == 0:
        with _lock:
            if _threads == 0:
                _spawn()


def _forget():
    """In a forked child, where the threads are not."""
    global _lock, _threads
    _lock = threading.Lock()
    _threads = 0


os.register_at_fork(after_in_child=_forget)


def _spawn():
    global _threads
    _threads += 1
    threading.Thread(target=_run, name="torchnative-completion", daemon=True).start()


def _run():
    global _threads
    while True:
        taken = _tn.completion_next(_IDLE_SECONDS)
        if taken is None:
            with _lock:
                if _threads > 1:
                    _threads -= 1
                    return
            continue
        callback, work, idle = taken
        if idle == 0:
            with _lock:
                _spawn()
        try:
            callback(work)
        except BaseException as error:  # noqa: BLE001: a callback's fault must not end the thread that others wait for
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))
        # Nothing may be held while waiting for the next one: not the work, nor the tensors behind it.
        del taken, callback, work
