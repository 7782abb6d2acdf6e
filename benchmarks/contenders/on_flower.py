"""The job on Flower's simulation: Ray, two workers with one core each.

    python -m benchmarks.contenders.on_flower JOB ROUNDS lean|tutorial

A `lean` client does what the plain loop does, on a model that its worker keeps. A `tutorial` client does what
Flower's tutorials show: a new model, a DataLoader and an optimizer at every call. Data are loaded once a worker.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gate import Gate
from benchmarks.jobs import DRAWN_CLIENTS, Job
from benchmarks.training import Data, arguments, load, make_model, quality, resident, train

WORKERS = 2


class Gated(FedAvg):
    """FedAvg that stops at the gate before every round."""

    def __init__(self, gate: Gate, **options: object) -> None:
        super().__init__(**options)
        self._gate = gate

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> object:
        self._gate.wait()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> object:
        """Flower goes on without the clients that failed; a benchmark must not."""
        answers = list(replies)
        failed = [answer.error.reason for answer in answers if answer.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} clients failed, the first with: {failed[0]}")
        return super().aggregate_train(server_round, answers)


def train_as_in_tutorials(model: nn.Module, data: Data, rows: Tensor, job: Job) -> None:
    """Train a client with a DataLoader and an optimizer of torch."""
    loader = DataLoader(TensorDataset(data.inputs[rows], data.labels[rows]), job.batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
    model.train()
    for _ in range(job.epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            if job.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()


def make_client(name: str, lean: bool) -> ClientApp:
    """The app that trains a client of this job."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        job, data, kept = resident(name)
        model = kept if lean else make_model(job)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rows = data.clients[int(context.node_config["partition-id"])]
        (train if lean else train_as_in_tutorials)(model, data, rows, job)
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(rows)}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def make_server(job: Job, rounds: int, gate: Gate) -> ServerApp:
    """The app that runs the rounds."""
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        model = make_model(job)
        strategy = Gated(
            gate,
            fraction_train=job.cohort / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=job.clients,
        )
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        gate.finish(**quality(model, load(job)))

    return app


def main() -> None:
    """Play the rounds."""
    job, rounds, (client,) = arguments()
    job = replace(job, clients=DRAWN_CLIENTS if job.addressed else job.clients)
    run_simulation(
        make_server(job, rounds, Gate()),
        make_client(job.name, lean=client == "lean"),
        num_supernodes=job.clients,
        backend_config={"init_args": {"num_cpus": WORKERS}, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


if __name__ == "__main__":
    main()
