"""The server app: which model, what it is tested on, and the options of the run-config."""

from collections.abc import Mapping

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedwcm.flower.app_functions import with_run_config
from fedwcm.flower.deployment import Deployment, TestData, origin_of
from fedwcm.flower.model import ModelFactory
from fedwcm.flower.run_config import read
from fedwcm.runs.runner import RunResult


def server_app(*, model: ModelFactory, evaluate: TestData | None = None) -> ServerApp:
    """A Flower app that trains this model over its clients, by whichever method the run asks for.

    Args:
        model: makes the model, as for `client_app`.
        evaluate: gives `(inputs, labels)` to test the model on; None if the server has no data.

    Both get Flower's run-config as well, if they take a parameter `run_config`.
    """

    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config, model, evaluate)

    app = ServerApp()
    app.main()(main)
    return app


def serve(
    grid: Grid, run_config: Mapping[str, object], model: ModelFactory, evaluate: TestData | None = None
) -> RunResult | None:
    """Run to the end, from the start or from the checkpoint in its folder; None if it was finished before."""
    tested = None if evaluate is None else with_run_config(evaluate, run_config)
    return Deployment(grid, read(run_config), with_run_config(model, run_config), origin_of(model), tested).run()
