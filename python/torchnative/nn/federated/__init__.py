"""Federated learning: devices train locally and share updates, not data.

    from torchnative.nn import federated

    engine = federated.Engine(model, rounds=20, data=loader, loss=F.cross_entropy, optimizer=torch.optim.SGD)
    history = engine.participate()

The same code runs on one device (nothing to set up), over a ``torch.distributed`` world on backend ``tn``, and, with
``server="tls+tcp://host:port"``, through the aggregation server.
"""

from .aggregators import FedAvg
from .engine import Engine
from .history import History, RoundRecord
from .privacy import CentralDP, LocalDP
from .training import Round, TrainError, Update
from .tls import TLS

__all__ = ["CentralDP", "Engine", "FedAvg", "History", "LocalDP", "Round", "RoundRecord", "TLS", "TrainError", "Update"]
