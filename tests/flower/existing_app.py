"""An app as Flower's own tutorials write it, whose strategy became ours: what `docs/flower.md` shows."""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedwcm.flower import Strategy, add_training

from .federation import data, model, test_data

app = ClientApp()
add_training(app, model=model, data=data)  # in the place of @app.train()


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """As it was before: the arrays are the model's state dict, the reply is a record of metrics."""
    net = model()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    assert message.content.config_records["config"]["threshold"] == 0.5
    x, y, _ = data(context.node_config)
    metrics = MetricRecord({"recall": accuracy(net, x, y), "num-examples": len(y), "patients": len(y) // 2})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def accuracy(net: torch.nn.Module, x: Any, y: Any) -> float:
    with torch.no_grad():
        predicted = net(torch.as_tensor(x)).argmax(dim=1)
    return float((predicted == torch.as_tensor(y)).float().mean())


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    net = model()
    net.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(net, *test_data())})


def main(grid: Grid, run_config: Mapping[str, Any], **settings: Any) -> Result:
    """The server app: only the first line is another than before."""
    strategy = Strategy("fedwcm", model=model, fraction_train=0.6, fraction_evaluate=0.4, settings=settings)
    torch.manual_seed(5)
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=int(run_config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": 0.05, "local-epochs": 1, "batch-size": 16}),
        evaluate_config=ConfigRecord({"threshold": 0.5}),
        evaluate_fn=global_evaluate,
    )
