"""A client of README.md's server: python examples/client.py client-1 (the name of its certificate in certs/)."""

import sys, torch, torch.nn.functional as F
from torchnative.nn import federated

name = sys.argv[1]
model = torch.nn.Linear(4, 3)
x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))     # this device's own data
engine = federated.Engine(
    model,
    data=list(zip(x.split(10), y.split(10))), loss=F.cross_entropy, optimizer=torch.optim.SGD,
    server="tls+tcp://localhost:4433", tls=federated.TLS.from_folder("certs", name),
    progress=True,
)
engine.participate()
