"""One client: its own process, its own examples, its own certificate.

    python client.py --number 3 --data client-3.safetensors --server tls+tcp://localhost:4433 --certs FOLDER
"""

import argparse

import torch
import torch.nn.functional as F

import task
from torchnative.nn import federated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, required=True, help="which client this is, from 0")
    parser.add_argument("--data", required=True, help="the file with its examples")
    parser.add_argument("--server", required=True, help="the server's URL")
    parser.add_argument("--certs", required=True, help="the folder with this client's certificate, key and identity")
    options = parser.parse_args()

    torch.set_num_threads(1)
    task.warm_up()
    x, y = task.read_share(options.data)
    engine = federated.Engine(
        task.make_model(),
        data=lambda round: task.batches(x, y, options.number, round),
        loss=F.cross_entropy,
        optimizer=task.optimizer,
        local_epochs=task.LOCAL_EPOCHS,
        server=options.server,
        tls=federated.TLS.from_folder(options.certs, f"client-{options.number + 1}"),
        progress=True,
    )
    history = engine.participate()
    print(f"client {options.number}: {history}", flush=True)


if __name__ == "__main__":
    main()
