"""The backend "tn" of torch.distributed.

Importing this module registers the backend, and torch finds it without that: `import torch` calls `_autoload` through the entry point group
"torch.backends". Both are cheap; the native library is loaded when the first group is made.
"""

BACKEND = "tn"

__all__ = ["BACKEND", "ProcessGroupTN", "TimeoutTN", "WorkTN", "monitored_barrier"]


def _autoload():
    """What `import torch` calls. May run while this module is being imported, so everything it needs is above or inside."""
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(options, pg_options=None):
    from torchnative.distributed import _group

    return _group.create(options, pg_options)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """A barrier in which rank 0 names the ranks that did not come in time (a timedelta, or the group's time-out).

    The others fail with it. torch's function of this name serves backend gloo only. With wait_all_ranks all missing ranks are
    named, otherwise the first.
    """
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    if not isinstance(group, __getattr__("ProcessGroupTN")):
        raise ValueError(f"torchnative.distributed.monitored_barrier serves groups of backend '{BACKEND}', not {group!r}")
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def __getattr__(name):
    if name == "ProcessGroupTN":
        from torchnative.distributed._group import ProcessGroupTN as found
    elif name == "WorkTN":
        from torchnative.distributed._work import WorkTN as found
    elif name == "TimeoutTN":
        from torchnative.distributed._work import TimeoutTN as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


_autoload()
