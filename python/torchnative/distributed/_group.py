"""ProcessGroupTN: torch.distributed's ProcessGroup over the C process group.

torch calls the operations from C++ (through its trampolines) and from Python; both find the methods below. They turn torch's argument forms into
one native call each and hold no logic of their own. Names are those of 2.13, with the older ones as aliases.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled

from torchnative import _tn
from torchnative.distributed import BACKEND, _options
from torchnative.distributed._work import TimeoutTN, WorkTN, translated

_CPU = torch.device("cpu")
_DTYPES = {getattr(torch, name) for name in _tn.DTYPES if hasattr(torch, name)}
_NAME_BYTES = 60  # of a group, in messages; the store that torch gives has a prefix of its own for each group
_MONITOR_TAG = 0xFFFF0000  # torch's tags are positive 32-bit integers, so users never meet ours


def create(options, pg_options):
    """What torch calls to make a group of this backend, with its _DistributedBackendOptions."""
    if pg_options is not None:
        raise ValueError(f"backend '{BACKEND}' takes its options from TN_* variables, not from pg_options={pg_options!r}")
    _refuse_device_map()
    ranks = options.global_ranks_in_group
    name = options.group_id if ranks else "world"
    return ProcessGroupTN(options.store, options.group_rank, options.group_size, options.timeout, name=name, ranks=ranks)


def _refuse_device_map():
    """In 2.13 a group that is a Python class replaces torch's whole ProcessGroup, so in a map of several devices the others' backends would
    silently never be made. torch does not tell a creator of the map: it is in the frame that calls it."""
    frame = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("backend_config") if frame.f_code.co_name == "_new_process_group_helper" else None
        if config is not None:
            if set(config.get_device_backend_map()) - {"cpu"}:
                raise ValueError(f"the device map '{config!r}' cannot be served: with torch {torch.__version__} a group of backend "
                                 f"'{BACKEND}' serves the CPU alone; use '{BACKEND}' or 'cpu:{BACKEND}', and a second group for the other devices")
            return
        frame = frame.f_back


def _label(name, ranks):
    """A group's name in messages, which number its ranks from 0: with the ranks of the world behind it if those are others."""
    text = name
    if list(ranks) != list(range(len(ranks))):
        text = f"{name} (the world's {', '.join(map(str, ranks))})"
    return text if len(text.encode()) <= _NAME_BYTES else text.encode()[: _NAME_BYTES - 3].decode(errors="ignore") + "..."


def _seconds(timeout):
    """c10d's time-out of one call: None or below 0 is the group's."""
    seconds = timeout.total_seconds() if timeout is not None else -1.0
    return seconds if seconds > 0 else None


def _op(reduce_op):
    """The name of a ReduceOp or RedOpType, and the factor of PREMUL_SUM."""
    kind = getattr(reduce_op, "op", reduce_op)
    factor = reduce_op.factor if kind == dist.ReduceOp.RedOpType.PREMUL_SUM else None
    return kind.name, float(factor) if factor is not None else None


def _reduce_op(opts, op=None):
    if opts is not None:
        return opts.reduceOp
    return op if op is not None else dist.ReduceOp.SUM


def _translating(issue):
    def call(*args):
        try:
            return issue(*args)
        except (_tn.PeerError, TimeoutError) as error:  # the group has failed before
            raise translated(error) from error

    return call


class _Operations:
    """The native group's operations, with errors as torch's callers know them."""

    def __init__(self, group):
        for name in ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "gather", "scatter", "alltoall", "barrier", "send", "recv"):
            setattr(self, name, _translating(getattr(group, name)))


class ProcessGroupTN(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout=dist.distributed_c10d.default_pg_timeout, name="world", *, ranks=(), made=None):
        """``ranks``: those of the world, if they are others. ``made``: a native group that exists already (it was shrunk to)."""
        super().__init__(rank, size)
        options = _options.group_options(store, timeout, dist.distributed_c10d.default_pg_timeout) if made is None else {"timeout": timeout}
        self._store = store
        self._rank = rank
        self._size = size
        self._name = name
        self._description = "undefined"
        self._timeout = options["timeout"]
        self._splits = 0
        self._ranks = list(ranks) or list(range(size))
        self._group = made or _tn.Group(store if size > 1 else None, rank, size, name=_label(name, self._ranks), **options)
        self._ops = _Operations(self._group)

    # ---- what torch asks about a group ----

    def getBackendName(self):
        return BACKEND

    name = _get_backend_name = getBackendName

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    rank = getRank
    size = getSize

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    def getGroupDesc(self):
        return self._description

    def setGroupDesc(self, description):
        self._description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def get_group_store(self):
        return self._store

    @property
    def _device_types(self):
        return [_CPU]

    def _get_backend(self, device):
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}: backend '{BACKEND}' serves the CPU")
        return self

    supports_splitting = True
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False
    supports_tensor_alloc = False

    def _get_sequence_number_for_group(self):
        return self._group.sequence

    def _set_sequence_number_for_group(self):
        """Ranks agree on it from the start: each message carries it."""

    def _has_hooks(self):
        return False

    def set_timeout(self, timeout):
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # ---- its end, and groups made of it ----

    def abort(self):
        self._group.abort("aborted by the application")

    def shutdown(self):
        """Lets what was issued finish, at most the group's time-out, and frees everything."""
        self._group.close(self._timeout)

    def splitGroup(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, devices=None):
        """The group of those ranks of this one, for its members; None for the rest. Every rank calls it with its own list."""
        if opts is not None:
            raise ValueError(f"backend '{BACKEND}' takes its options from TN_* variables, not from {opts!r}")
        self._splits += 1
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{self._splits}:{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{name}/", self._store)
        timeout = timeout if timeout is not None else timedelta(seconds=self._timeout)
        members = [self._ranks[rank] for rank in ranks]
        group = ProcessGroupTN(store, list(ranks).index(self._rank), len(ranks), timeout, name=name, ranks=members)
        group.setGroupDesc(group_desc or f"{self._description}:split:{self._splits}")
        return group

    split_group = splitGroup

    @property
    def seconds(self):
        """The time-out of an operation."""
        return self._timeout

    @property
    def native(self):
        """The `_tn.Group` under this group, for what torch has no words for (WMEAN, one call over several dtypes). It belongs to this group: its
        collectives count in the same sequence, so all ranks issue them in the same order among torch's, and `shutdown` closes it."""
        return self._group

    def shrink(self, timeout=None, minority=False):
        """torchnative.distributed.shrink, without telling torch: the new group, and its ranks by those of this one."""
        try:
            made, ranks = self._group.shrink(timeout.total_seconds() if timeout is not None else None, minority)
        except (_tn.PeerError, TimeoutError) as error:
            raise translated(error) from error
        name = f"{self._name}:shrunk:{'-'.join(map(str, ranks))}"
        store = dist.PrefixStore(f"{name}/", self._store) if self._store is not None else None
        group = ProcessGroupTN(store, made.rank, made.size, self._timeout, name=name, ranks=[self._ranks[old] for old in ranks], made=made)
        group.setGroupDesc(f"{self._description}:shrunk")
        return group, ranks

    def merge_remote_group(self, store, size, timeout=dist.distributed_c10d.default_pg_timeout, group_name=None, group_desc=None):
        """One group of several that share nothing but a store. All of their ranks call it; `size` is how many they are. Each group's ranks stay
        together and in order; which group comes first is decided by who gets there first."""
        name = group_name or "merged"
        store = dist.PrefixStore(f"{name}/", store)
        first = torch.tensor([store.add("ranks", self._size) - self._size if self._rank == 0 else 0])
        self._ops.broadcast([first], 0, timeout.total_seconds()).wait()
        if first.item() + self._size > size:
            raise ValueError(f"merge_remote_group: there are {first.item() + self._size} ranks or more, not {size}")
        group = ProcessGroupTN(store, first.item() + self._rank, size, timeout, name=name)
        group.setGroupDesc(group_desc or name)
        return group

    # ---- collectives ----

    def _work(self, name, works, tensors, inputs=None, finish=None):
        if not isinstance(works, list):
            works = [works]
        record = None
        if _profiler_enabled():
            # The prefix is the name by which torch knows the group, which its tools look for.
            backend = dist.get_backend(self) if self in dist.distributed_c10d._world.pg_map else BACKEND
            record = torch._C._profiler._RecordFunctionFast(f"{backend}:{name}", list(tensors if inputs is None else inputs))
        return WorkTN(works, tensors, name, record, finish)

    def _call_timeout(self, opts, timeout=None):
        given = _seconds(timeout)
        if given is None and opts is not None:
            given = _seconds(opts.timeout)
        return given if given is not None else self._timeout

    def allreduce(self, tensors, opts=None, timeout=None, op=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if opts is None or isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            op, opts = opts if opts is not None else op, None
        name, factor = _op(_reduce_op(opts, op))
        if tensors and getattr(tensors[0], "is_sparse", False):
            return self._allreduce_sparse(tensors, name, self._call_timeout(opts, timeout))
        work = self._ops.allreduce(tensors, name, factor, self._call_timeout(opts, timeout))
        return self._work("all_reduce", work, tensors)

    def _allreduce_sparse(self, tensors, op, seconds):
        """Everybody gets everybody's entries, and torch adds up those of equal index: the same entries in the same order on every rank. The numbers
        of entries are waited for, since they say how much to receive."""
        if op != "SUM" or len(tensors) != 1:
            raise self._refused(f"all_reduce of sparse tensors: one tensor at a time, by SUM; not {len(tensors)} by {op}")
        target, mine = tensors[0], tensors[0].detach().coalesce()
        shape = [*target.shape, target.sparse_dim()]
        counts = torch.zeros(self._size, 1 + len(shape), dtype=torch.int64)
        about = torch.tensor([mine._nnz(), *shape], dtype=torch.int64)
        self._ops.allgather(list(counts), about, seconds).wait()
        for rank, row in enumerate(counts.tolist()):
            if row[1:] != shape:
                raise ValueError(f"all_reduce of sparse tensors: rank {rank} has shape and sparse dimensions {row[1:]}, this rank {shape}")
        counts = counts[:, 0].tolist()
        indices = [torch.empty(mine.sparse_dim(), count, dtype=torch.int64) for count in counts]
        values = [mine.values().new_empty(count, *mine.values().shape[1:]) for count in counts]
        works = [self._ops.allgather(indices, mine.indices(), seconds), self._ops.allgather(values, mine.values(), seconds)]

        def finish():
            with torch.no_grad():
                target.copy_(torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), target.shape).coalesce())

        return self._work("all_reduce", works, tensors, finish=finish)

    def allreduce_coalesced(self, tensors, opts=None):
        name, factor = _op(_reduce_op(opts))
        work = self._ops.allreduce(tensors, name, factor, self._call_timeout(opts))
        return self._work("all_reduce", work, tensors)

    def broadcast(self, tensors, opts=None, timeout=None, root=0):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if isinstance(opts, int):
            opts, root = None, opts
        root = opts.rootRank if opts is not None else root
        work = self._ops.broadcast(tensors, root, self._call_timeout(opts, timeout))
        return self._work("broadcast", work, tensors)

    def reduce(self, tensors, opts=None, op=None, timeout=None, root=0):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if isinstance(opts, int):
            opts, root = None, opts
        name, factor = _op(_reduce_op(opts, op))
        root = opts.rootRank if opts is not None else root
        work = self._ops.reduce(tensors, root, name, factor, self._call_timeout(opts, timeout))
        return self._work("reduce", work, tensors)

    def allgather(self, outputs, inputs, opts=None, timeout=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        if len(outputs) != len(inputs):
            raise self._refused(f"all_gather: {len(outputs)} lists of outputs for {len(inputs)} inputs")
        seconds = self._call_timeout(opts, timeout)
        works = [self._ops.allgather(out, tensor, seconds) for out, tensor in zip(outputs, inputs)]
        return self._work("all_gather", works, [tensor for out in outputs for tensor in out], inputs)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # torch's lists here are one a rank, each of one tensor an input.
        return self.allgather([list(column) for column in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output, tensor, opts=None):
        work = self._ops.allgather(self._parts(output, "all_gather", "output"), tensor, self._call_timeout(opts))
        return self._work("all_gather", work, [output], [tensor])

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        seconds = self._call_timeout(opts)
        works = [self._ops.allgather(self._parts(output, "all_gather", "output"), tensor, seconds) for output, tensor in zip(outputs, inputs)]
        return self._work("all_gather", works, outputs, inputs)

    def reduce_scatter(self, outputs, inputs, opts=None, op=None, timeout=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            opts, op = None, opts
        name, factor = _op(_reduce_op(opts, op))
        seconds = self._call_timeout(opts, timeout)
        works = [self._ops.reduce_scatter(output, tensors, name, factor, seconds) for output, tensors in zip(outputs, inputs)]
        return self._work("reduce_scatter", works, outputs, [tensor for tensors in inputs for tensor in tensors])

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        parts = [self._parts(tensor, "reduce_scatter", "input") for tensor in inputs]
        return self.reduce_scatter(outputs, parts, opts)

    def gather(self, outputs, inputs, opts=None, timeout=None, root=0):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if isinstance(opts, int):
            opts, root = None, opts
        root = opts.rootRank if opts is not None else root
        out = outputs[0] if self._rank == root and outputs else None
        work = self._ops.gather(out, inputs[0], root, self._call_timeout(opts, timeout))
        return self._work("gather", work, list(out or []), inputs)

    def scatter(self, outputs, inputs, opts=None, timeout=None, root=0):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        if isinstance(opts, int):
            opts, root = None, opts
        root = opts.rootRank if opts is not None else root
        tensors = inputs[0] if self._rank == root and inputs else None
        work = self._ops.scatter(outputs[0], tensors, root, self._call_timeout(opts, timeout))
        return self._work("scatter", work, outputs)

    def alltoall(self, outputs, inputs, opts=None, timeout=None):
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        work = self._ops.alltoall(outputs, inputs, self._call_timeout(opts, timeout))
        return self._work("all_to_all", work, outputs, inputs)

    def all_to_all_single(self, output, tensor, output_splits=None, input_splits=None, opts=None, timeout=None):
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        outputs = self._parts(output, "all_to_all", "output", output_splits)
        inputs = self._parts(tensor, "all_to_all", "input", input_splits)
        work = self._ops.alltoall(outputs, inputs, self._call_timeout(opts, timeout))
        return self._work("all_to_all", work, [output], [tensor])

    def barrier(self, opts=None, timeout=None):
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._work("barrier", self._ops.barrier(self._call_timeout(opts, timeout)), [])

    def _refused(self, why):
        """The error of a collective that is refused before the native group hears of it. The other ranks' calls fail by name instead of waiting."""
        self._group.refuse()
        return ValueError(why)

    def _parts(self, tensor, name, which, splits=None):
        """One view a rank along the first dimension, in equal parts unless told. The memory is one behind the other if the tensor is contiguous."""
        if splits:
            if len(splits) != self._size:
                raise self._refused(f"{name}: {len(splits)} split sizes of the {which} for {self._size} ranks")
            if sum(splits) != tensor.shape[0]:
                raise self._refused(f"{name}: the split sizes of the {which} add up to {sum(splits)}, its first dimension is {tensor.shape[0]}")
            return list(tensor.split_with_sizes(splits))
        if self._size == 1:
            return [tensor]
        if tensor.dim() > 0 and tensor.shape[0] % self._size == 0:
            step = tensor.shape[0] // self._size
            return [tensor.narrow(0, rank * step, step) for rank in range(self._size)]
        if tensor.numel() % self._size or not tensor.is_contiguous():
            raise self._refused(f"{name}: the {which} of shape {list(tensor.shape)} cannot be cut into {self._size} equal parts")
        flat, step = tensor.view(-1), tensor.numel() // self._size
        return [flat.narrow(0, rank * step, step) for rank in range(self._size)]

    # The names of earlier releases.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- point to point ----

    def send(self, tensors, dst, tag=0):
        return self._work("send", self._ops.send(self._one(tensors, "send"), dst, tag, self._timeout), tensors)

    def recv(self, tensors, src, tag=0):
        return self._work("recv", self._ops.recv(self._one(tensors, "recv"), src, tag, self._timeout), tensors)

    def recv_anysource(self, tensors, tag=0):
        return self._work("recvAnySource", self._ops.recv(self._one(tensors, "recv"), -1, tag, self._timeout), tensors)

    @staticmethod
    def _one(tensors, name):
        if len(tensors) != 1:
            raise ValueError(f"{name} takes one tensor at a time, not {len(tensors)}")
        if isinstance(tensors[0], torch.Tensor) and tensors[0].dtype not in _DTYPES:
            return tensors[0].view(torch.uint8)  # a message is bytes, so what has no kernels (int4, bits8, ...) can be one
        return tensors[0]

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """torchnative.distributed.monitored_barrier, as a method. Point to point, so that a rank that does not come breaks nothing."""
        seconds = timeout.total_seconds() if timeout is not None else self._timeout
        if seconds <= 0:
            raise TimeoutTN(f"Rank {self._rank} timed out in monitoredBarrier after {seconds * 1000:.0f} ms")
        if self._rank == 0:
            self._monitor(seconds, wait_all_ranks)
            return
        token = torch.zeros(1, dtype=torch.uint8)
        try:
            self._group.send(token, 0, _MONITOR_TAG, seconds).wait()
            self._group.recv(token, 0, _MONITOR_TAG, seconds).wait()
        except (_tn.PeerError, TimeoutError) as error:
            raise TimeoutTN(f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                            f"from rank 0. Please check rank 0 logs for faulty rank. ({error})") from error

    def _monitor(self, seconds, wait_all_ranks):
        tokens = torch.zeros(self._size, dtype=torch.uint8)
        works = [self._group.recv(tokens[rank], rank, _MONITOR_TAG, seconds) for rank in range(1, self._size)]
        missing, cause = [], None
        for rank, work in enumerate(works, 1):
            try:
                work.wait()
            except (_tn.PeerError, TimeoutError) as error:
                missing.append(rank)
                cause = error
                if not wait_all_ranks:
                    break
        if missing:
            ranks = ", ".join(map(str, missing))
            raise TimeoutTN(f"[Rank 0]: Rank{'s' if len(missing) > 1 else ''} {ranks} failed to pass monitoredBarrier in "
                            f"{seconds * 1000:.0f} ms") from cause
        for work in [self._group.send(tokens[0], rank, _MONITOR_TAG, seconds) for rank in range(1, self._size)]:
            work.wait()
