"""The digits federation of examples/digits on Flower's simulation: the peer of `make run` in `make bench`.

Runs in .venv-flower. Same data, split, model, batches, optimizer and rounds; prints one JSON line:
seconds per round from the first round's start to the last round's end, and the accuracy reached.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "digits"))

import torch  # noqa: E402
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

import reference  # noqa: E402
import task  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--clients", type=int, default=8)
options = parser.parse_args()

client_app, server_app = ClientApp(), ServerApp()
times: list[float] = []
result: dict = {}


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    x, y = task.examples(client, options.clients)
    model = task.make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number = int(message.content["config"]["server-round"])
    reference.train(model, task.batches(x, y, client, number), task.LOCAL_EPOCHS)
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    def tick(number: int, arrays: ArrayRecord) -> None:
        times.append(time.monotonic())

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=options.clients, min_available_nodes=options.clients)
    initial = ArrayRecord(task.make_model().state_dict())
    outcome = strategy.start(grid=grid, initial_arrays=initial, num_rounds=options.rounds, evaluate_fn=tick)
    model = task.make_model()
    model.load_state_dict(outcome.arrays.to_torch_state_dict())
    _, _, x, y = task.load()
    result["accuracy"] = task.accuracy(model, x, y)


if __name__ == "__main__":
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=options.clients, backend_config=backend)
    result["seconds_per_round"] = (times[-1] - times[0]) / options.rounds
    print(json.dumps(result))
