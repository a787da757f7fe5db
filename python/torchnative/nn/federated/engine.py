"""The Engine: local training here, aggregation wherever the participants meet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import torch

from torchnative import _tn
from torchnative._torch import tensor_ready

from .aggregators import Aggregator, FedAvg
from .channels import GroupChannel, Outcome, ServerChannel, Task
from .history import History, RoundRecord
from .privacy import CentralDP, LocalDP, PrivateGroupChannel
from .tls import TLS
from .training import LocalTraining, TrainError, Update, checked_metrics, run_train


class Engine:
    """One participant of a federation.

    It meets the others over the default ``torch.distributed`` process group (backend ``tn``), alone when there is none
    (a world of one, with nothing to set up), or, with ``server=``, through the aggregation server. In each round it
    takes the round's model, trains it locally, and contributes the difference (the delta) with its number of examples
    as weight. After :meth:`participate` the model holds the final global weights; after an error in it, the global weights of the
    last round that this participant saw begin.

    Args:
        model: a ``torch.nn.Module`` on the CPU. Parameters and persistent buffers take part: floating buffers are
            averaged like parameters, integer ones take the maximum, boolean ones must not change.
        rounds: how many rounds. With a server the server's number holds; a different one here is an error.
        aggregator: the rule, default ``FedAvg()``. With a server it must be the server's, or None.
        data, loss, optimizer, local_epochs: the local step as plain epochs: batches of (input, target); ``data`` may also
            be a callable that takes the round and returns batches. ``optimizer`` is a class or callable that is given the
            parameters anew each round, or an instance that keeps its state.
        train: the local step as one function ``train(model, round)`` that trains the model in place and returns
            ``federated.Update(num_examples=n, metrics={...})``; instead of the four above.
        evaluate: ``evaluate(model, round)``, called with each round's new model; returns a dict of floats or None.
        callbacks: functions ``callback(engine, record)`` called after each round with its :class:`RoundRecord`.
        privacy: ``[federated.CentralDP(...)]`` over a group, or ``[federated.LocalDP(...)]`` anywhere.
        server: ``"tls+tcp://host:port"`` (with ``tls=``), or ``"tcp://..."`` and ``"ipc://..."`` on this host.
        tls: a :class:`TLS`: this client's certificate, key and CA.
        client_id: without TLS, the id to ask the server for; default: random. With TLS the server knows it by its key.
        group: the process group; default: the default group. When a rank of it is lost, the others go on in a smaller group, which
            takes its place here (``engine.group``).
        connect_timeout: seconds to keep trying to reach the server, at the start and after a break.
        insecure: allow plain tcp to another host.
        progress: True: a line a round on standard error; default: only when that is a terminal.

    Not thread-safe; :meth:`participate` blocks, reacts to Ctrl-C, and may be called once.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        rounds: int | None = None,
        aggregator: Aggregator | None = None,
        data=None,
        loss: Callable | None = None,
        optimizer=None,
        local_epochs: int = 1,
        train: Callable | None = None,
        evaluate: Callable | None = None,
        callbacks: Iterable[Callable] = (),
        selection=None,
        privacy=(),
        server: str | None = None,
        tls: TLS | None = None,
        client_id: str | None = None,
        group=None,
        connect_timeout: float = 60.0,
        insecure: bool = False,
        progress: bool | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1):
            raise ValueError(f"rounds={rounds!r}; an integer of at least 1 is needed")
        if rounds is None and server is None:
            raise ValueError("rounds= is needed when there is no server to say it")
        if aggregator is not None and not isinstance(aggregator, Aggregator):
            raise TypeError(f"aggregator must be an instance such as federated.FedAvg(), not {aggregator!r}")
        if selection is not None:
            raise NotImplementedError("selection= is not built yet: every participant takes part in each round")
        self.central, self.local = self._privacy(privacy, server)
        if server is not None and group is not None:
            raise ValueError("server= and group= exclude each other: the participants meet in one place")
        if tls is not None and not isinstance(tls, TLS):
            raise TypeError(f"tls must be a federated.TLS, not {type(tls).__name__}")
        for name, function in (("train", train), ("evaluate", evaluate)):
            if function is not None and not callable(function):
                raise TypeError(f"{name}= must be callable, not {type(function).__name__}")
        self.model, self.rounds, self.aggregator = model, rounds, aggregator
        self.train = self._local_step(train, data, loss, optimizer, local_epochs)
        self.evaluate, self.callbacks = evaluate, tuple(callbacks)
        self.server, self.tls, self.client_id, self.group = server, tls, client_id, group
        self.connect_timeout, self.insecure = connect_timeout, insecure
        self.progress = sys.stderr.isatty() if progress is None else progress
        self.history = History()
        self._used = False
        self._noisy = 0  # updates that left with local noise

    @staticmethod
    def _privacy(privacy, server) -> tuple[CentralDP | None, LocalDP | None]:
        privacy = tuple(privacy)
        for one in privacy:
            if not isinstance(one, (CentralDP, LocalDP)):
                raise TypeError(f"privacy= is a list of federated.CentralDP(...) or federated.LocalDP(...), not {one!r}")
        if len(privacy) > 1:
            raise ValueError("privacy= holds two kinds of noise; one of them is enough, and the other only costs accuracy")
        central = next((one for one in privacy if isinstance(one, CentralDP)), None)
        if central is not None and server is not None:
            raise ValueError("CentralDP with server=: the noise is the server's, and set there (torchnative-server --dp); leave it out here")
        return central, next((one for one in privacy if isinstance(one, LocalDP)), None)

    @staticmethod
    def _local_step(train, data, loss, optimizer, local_epochs) -> Callable:
        if train is not None:
            if data is not None or loss is not None or optimizer is not None:
                raise ValueError("give train=, or data=, loss= and optimizer=, not both")
            return train
        if data is None:
            raise ValueError("give data=, loss= and optimizer=, or train=: the Engine needs to know how to train")
        return LocalTraining(data, loss, torch.optim.SGD if optimizer is None else optimizer, local_epochs)

    def participate(self) -> History:
        """Takes part until the last round is over and returns the :class:`History`.

        Raises:
            ValueError: the models, or what Engine and server were told, differ; the text names the first difference.
            TrainError: the local step failed or returned something else than an ``Update``; the others go on without it.
            ConnectionError, TimeoutError, PermissionError: the others or the server cannot be reached, or refuse us.
        """
        if self._used:
            raise RuntimeError("participate() was called before on this Engine; make a new one for a new run")
        self._used = True
        tensor_ready()
        state = self._state()
        self.layout = _tn.Layout((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items())
        self._base = torch.empty(self.layout.nbytes, dtype=torch.uint8)
        self._local = torch.empty_like(self._base)
        self.layout.pack(state, self._base)
        channel = self._open()
        try:
            channel.join(self.layout, self._base)
            self._agree(channel)
            try:
                self._run(channel)
            except BaseException:
                self._load()  # what was trained since is in no model
                raise
        finally:
            channel.close()
        return self.history

    def _run(self, channel) -> None:
        pending: RoundRecord | None = None
        started = time.monotonic()
        sent, received = channel.traffic()
        while True:
            task = channel.next()
            self._load()
            if pending is not None:  # the model that ends the previous round is here
                now = channel.traffic()
                pending.bytes_sent, pending.bytes_received = now[0] - sent, now[1] - received
                pending.seconds = time.monotonic() - started
                started, (sent, received) = time.monotonic(), now
                self._finish_round(pending)
            if task is None:
                return
            pending = self._round(channel, task)

    def _round(self, channel, task: Task) -> RoundRecord:
        problem, update = None, None
        try:
            update = run_train(self.train, self.model, task.round)
        except TrainError as error:
            problem = error
            if isinstance(channel, ServerChannel):
                raise  # closing the channel tells the server to go on without this client
        metrics = {} if update is None else update.metrics
        examples = 0 if update is None else update.num_examples
        refusal = None if problem is None else str(problem)
        self.layout.pack(self._state(), self._local)
        self.layout.delta(self._local, self._base, self._local)
        if refusal is None and isinstance(channel, GroupChannel):
            try:
                self.layout.check_update(self._local, examples, f"rank {channel.group.rank}")
            except (_tn.Refused, ValueError) as error:
                refusal = str(error)
        if self.local is not None and refusal is None:
            self.local.protect(self.layout, self._local)
            examples, metrics = 1, {}
        outcome = channel.submit(self._local, examples, metrics, refusal)
        if problem is not None:
            raise problem
        if outcome.cohort == 0:
            raise RuntimeError(f"round {task.round} cannot be aggregated: {outcome.refusal}")
        record = self._record(task, update, outcome)
        if self.central is not None:
            record.epsilon = channel.epsilon()
        elif self.local is not None:
            self._noisy += 1
            record.epsilon = self.local.spent(self._noisy)
        return record

    def _record(self, task: Task, update: Update, outcome: Outcome) -> RoundRecord:
        loss = outcome.loss if outcome.loss is not None else update.metrics.get("loss")
        return RoundRecord(
            round=int(task.round),
            loss=loss,
            metrics=dict(update.metrics),
            cohort=task.cohort if outcome.cohort is None else outcome.cohort,
            examples=update.num_examples,
            accepted=outcome.accepted,
            refusal=outcome.refusal,
        )

    def _finish_round(self, record: RoundRecord) -> None:
        if self.evaluate is not None:
            self.model.eval()
            with torch.no_grad():
                record.metrics |= checked_metrics(self.evaluate(self.model, record.round), self.evaluate)
        self.history.rounds.append(record)
        if self.progress:
            self._tell(self._line(record))
        for callback in self.callbacks:
            callback(self, record)

    def _line(self, record: RoundRecord) -> str:
        of = "" if self.rounds is None else f"/{self.rounds}"
        parts = [f"round {record.round}{of}", f"cohort {record.cohort}"]
        if record.loss is not None:
            parts.append(f"loss {record.loss:.4f}")
        parts += [f"{name} {value:.4f}" for name, value in record.metrics.items() if name != "loss"]
        if record.epsilon is not None:
            parts.append(f"epsilon {record.epsilon:.4g}")
        parts += [f"{record.seconds:.3f} s", f"{record.bytes_sent + record.bytes_received:,} bytes"]
        if not record.accepted:
            parts.append(f"not counted: {record.refusal}")
        return "  ".join(parts)

    def _tell(self, text: str) -> None:
        print(f"torchnative: {text}", file=sys.stderr, flush=True)

    def _state(self) -> dict[str, torch.Tensor]:
        """What travels: the state dict, detached, on the CPU. Two names of one tied tensor travel as two, and stay equal."""
        state = {}
        for name, tensor in self.model.state_dict().items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name} in the model's state is a {type(tensor).__name__}, not a tensor; it cannot be averaged")
            if tensor.device.type != "cpu":
                raise ValueError(f"{name} is on {tensor.device}; the model must be on the CPU")
            state[name] = tensor.detach()
        if not state:
            raise ValueError("the model has no parameters and no buffers: there is nothing to federate")
        return state

    def _load(self) -> None:
        self.layout.unpack(self._base, self._state())

    def _open(self):
        if self.server is None:
            members = self._members()
            where = (_tn.Group(None, 0, 1) if members is None else members.native, self.rounds, members, self._shrunk)
            return GroupChannel(*where) if self.central is None else PrivateGroupChannel(self.central, *where)
        if self.tls is None and self.server.startswith("tls"):
            raise ValueError(f"{self.server} needs tls=federated.TLS(cert, key, ca); `torchnative-ctl cert issue` writes the files")
        files = {} if self.tls is None else self.tls.client_arguments()
        client = _tn.Client(
            self.server,
            client_id=self.client_id,
            insecure=self.insecure,
            connect_timeout=self.connect_timeout,
            notice=self._tell,
            **files,
        )
        return ServerChannel(client, self._tell)

    def _shrunk(self, members, reason: str) -> None:
        self.group = members
        self._tell(f"going on as rank {members.rank()} of {members.size()}: {reason}")

    def _members(self):
        """The process group, None when there is none: a participant alone."""
        import torch.distributed as dist

        if self.group is None and not (dist.is_available() and dist.is_initialized()):
            return None
        from torchnative.distributed import ProcessGroupTN

        group = dist.group.WORLD if self.group is None else self.group
        if not isinstance(group, ProcessGroupTN):
            raise ValueError(
                f"the process group has backend {dist.get_backend(group)}; the Engine's aggregation runs in torchnative's own "
                'collectives: init_process_group("tn"), or pass group=torch.distributed.new_group(backend="tn")'
            )
        return group

    def _agree(self, channel) -> None:
        """The server's word holds; an explicit difference here is an error that names both."""
        if isinstance(channel, GroupChannel):
            self.aggregator = self.aggregator or FedAvg()
            return
        job = channel.job
        if self.rounds is not None and self.rounds != job["rounds"]:
            raise ValueError(f"the Engine was told rounds={self.rounds}, the server runs {job['rounds']}; leave rounds= out to follow it")
        if self.aggregator is not None and self.aggregator.name != job["aggregator"]:
            raise ValueError(
                f"the Engine was told aggregator={self.aggregator!r}, the server runs {job['aggregator']}; leave aggregator= out to follow it"
            )
        self.rounds, self.client_id = job["rounds"], job["client_id"]
