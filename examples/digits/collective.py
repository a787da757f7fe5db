"""The same federation without a server: each rank of a torch.distributed world is one client.

    torchrun --nproc-per-node 8 collective.py --rounds 20 --data FOLDER --out FOLDER
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

import task
from torchnative.nn import federated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--data", required=True, help="the folder with a file of examples for each rank")
    parser.add_argument("--out", required=True, help="where rank 0 writes model.safetensors")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("tn")
    rank, clients = dist.get_rank(), dist.get_world_size()
    task.warm_up()
    x, y = task.read_share(os.path.join(options.data, f"client-{rank}.safetensors"))
    x_test, y_test = task.read_share(os.path.join(options.data, "test.safetensors"))
    rounds: list[dict] = []

    def report(engine: federated.Engine, record: federated.RoundRecord) -> None:
        rounds.append(
            {
                "round": record.round,
                "clients": list(range(clients)),
                "loss": record.loss,
                "accuracy": record.metrics["accuracy"],
                "seconds": record.seconds,
                "bytes": (record.bytes_sent + record.bytes_received) * clients,
            }
        )
        print(json.dumps(rounds[-1]), flush=True)

    model = task.make_model()
    engine = federated.Engine(
        model,
        rounds=options.rounds,
        aggregator=federated.FedAvg(),
        data=lambda round: task.batches(x, y, rank, round),
        loss=F.cross_entropy,
        optimizer=task.optimizer,
        local_epochs=task.LOCAL_EPOCHS,
        evaluate=(lambda model, round: {"accuracy": task.accuracy(model, x_test, y_test)}) if rank == 0 else None,
        callbacks=[report] if rank == 0 else [],
        progress=False,
    )
    engine.participate()
    if rank == 0:
        save_file(model.state_dict(), os.path.join(options.out, "model.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
