"""The learning task: scikit-learn's digits, an MLP, and how the examples are spread over the clients.

The driver writes each client's share to a file of its own, and a client reads no other. Everything is seeded, so that the
plain-torch reference can repeat what the clients did.
"""

import functools
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SEED = 0
ALPHA = 0.3  # of the Dirichlet distribution: the smaller, the less alike the clients
MIN_EXAMPLES = 10
LOCAL_EPOCHS = 2
BATCH = 32
LEARNING_RATE = 0.2


@functools.cache
def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training inputs [n, 64] in 0..1 and targets [n], then the 20 % stratified test part."""
    import numpy  # these are the driver's: a client needs neither, and scikit-learn takes a second to import
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    inputs = (digits.data / 16.0).astype(numpy.float32)
    x, x_test, y, y_test = train_test_split(inputs, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(x_test), torch.from_numpy(y_test)


def split(targets: torch.Tensor, clients: int) -> list[torch.Tensor]:
    """For each client the indices of its examples: of each class, shares drawn from Dirichlet(ALPHA).

    Drawn again until every client has at least MIN_EXAMPLES.
    """
    import numpy

    random = numpy.random.default_rng(SEED)
    labels = targets.numpy()
    for _ in range(1000):
        parts: list[list] = [[] for _ in range(clients)]
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


def write_shares(folder: Path, clients: int) -> None:
    """FOLDER/client-0.safetensors and so on, one for each client, and FOLDER/test.safetensors."""
    folder.mkdir()
    for client in range(clients):
        x, y = examples(client, clients)
        save_file({"x": x, "y": y}, folder / f"client-{client}.safetensors")
    _, _, x, y = load()
    save_file({"x": x, "y": y}, folder / "test.safetensors")


def read_share(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets from one of those files."""
    share = load_file(path)
    return share["x"], share["y"]


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
