"""The backend "tn" of torch.distributed.

Importing this module registers the backend, and torch finds it without that: `import torch` calls `_autoload` through the entry point group
"torch.backends". Both are cheap; the native library is loaded when the first group is made.
"""

BACKEND = "tn"

__all__ = ["BACKEND", "ProcessGroupTN", "TimeoutTN", "WorkTN", "monitored_barrier", "shrink"]


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


def shrink(group=None, timeout=None, minority=False):
    """A group of the ranks that are still alive. After an operation has failed because a rank was lost, every rank that wants to go on calls this.

    The ranks agree among themselves on who is left (the store may be gone), and the new group works when the call returns: its ranks are in the old
    order, and torch knows it, so it serves wherever a `group=` is taken. `timeout` is a timedelta, 30 s by default; a rank that is there but does not
    come is waited for during half of it. More than half of the old ranks are needed, or half with rank 0 among them, so that two parts of a divided
    network never both go on; others get a DistBackendError that says whom they could reach. `minority=True` on all of them lifts that. The old
    group has failed, and is the caller's to destroy; the default group stays the default one, whatever its state.
    """
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    if not isinstance(group, __getattr__("ProcessGroupTN")):
        raise ValueError(f"torchnative.distributed.shrink serves groups of backend '{BACKEND}', not {group!r}")
    new, ranks = group.shrink(timeout, minority)
    world = dist.distributed_c10d._world
    if group in world.pg_map:
        before = dist.get_process_group_ranks(group)
        name = f"{group.group_name}:shrunk:{'-'.join(map(str, ranks))}"
        dist.distributed_c10d._register_pg_in_world(
            pg=new, backend_name=world.pg_map[group][0], store=new.get_group_store(), group_name=name,
            backend_config=world.pg_backend_config[group], rank_mapping={before[old]: rank for rank, old in enumerate(ranks)})
    return new


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
