"""The learning task: scikit-learn's digits, an MLP, and how the examples are spread over the clients.

Everything is seeded, so that each process finds the same split by itself, and so that the plain-torch reference can repeat
what the clients did.
"""

import functools

import numpy
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 0
ALPHA = 0.3  # of the Dirichlet distribution: the smaller, the less alike the clients
MIN_EXAMPLES = 10
LOCAL_EPOCHS = 2
BATCH = 32
LEARNING_RATE = 0.2


@functools.cache
def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training inputs [n, 64] in 0..1 and targets [n], then the 20 % stratified test part."""
    digits = load_digits()
    inputs = (digits.data / 16.0).astype(numpy.float32)
    x, x_test, y, y_test = train_test_split(inputs, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test), torch.from_numpy(y_test)


def split(targets: torch.Tensor, clients: int) -> list[torch.Tensor]:
    """For each client the indices of its examples: of each class, shares drawn from Dirichlet(ALPHA).

    Drawn again until every client has at least MIN_EXAMPLES.
    """
    random = numpy.random.default_rng(SEED)
    labels = targets.numpy()
    for _ in range(1000):
        parts: list[list[numpy.ndarray]] = [[] for _ in range(clients)]
        for label in range(10):
            index = numpy.flatnonzero(labels == label)
            random.shuffle(index)
            cuts = (numpy.cumsum(random.dirichlet([ALPHA] * clients))[:-1] * len(index)).astype(int)
            for client, piece in enumerate(numpy.split(index, cuts)):
                parts[client].append(piece)
        joined = [numpy.sort(numpy.concatenate(part)) for part in parts]
        if min(len(part) for part in joined) >= MIN_EXAMPLES:
            return [torch.from_numpy(part) for part in joined]
    raise RuntimeError(f"no split of {len(labels)} examples gives each of {clients} clients {MIN_EXAMPLES}; use fewer clients")


@functools.cache
def examples(client: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of one client."""
    x, y, _, _ = load()
    mine = split(y, clients)[client]
    return x[mine], y[mine]


def make_model() -> torch.nn.Module:
    """The MLP 64-128-10, with the same first weights everywhere."""
    torch.manual_seed(SEED)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def batches(x: torch.Tensor, y: torch.Tensor, client: int, round: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One shuffled pass over a client's examples: the order depends on the client and the round, and on nothing else."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED + 1_000_003 * client + round))
    return [(x[piece], y[piece]) for piece in order.split(BATCH)]


def optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def warm_up() -> None:
    """One step on a model that is thrown away: torch loads seconds' worth of modules at its first, which belong to no round."""
    model = make_model()
    model(torch.zeros(1, 64)).sum().backward()
    optimizer(model.parameters()).step()


def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The share of examples whose class the model names."""
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
