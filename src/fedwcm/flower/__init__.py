"""The same methods on real clients, through Flower.

app = fedwcm.flower.client_app(model=my_model, data=my_data)                  # client_app.py
app = fedwcm.flower.server_app(model=my_model, evaluate=my_test_data)         # server_app.py

strategy = fedwcm.flower.Strategy("fedwcm", model=my_model)                    # in an app of Flower's own kind,
fedwcm.flower.add_training(app, model=my_model, data=my_data)                  # and in its client app

A federation of real clients is one more backend of the round that the simulator runs; a client runs the same
local loop. `fedwcm flower init DIR` writes an app to start from.
"""

try:
    import flwr  # noqa: F401 (only to say at once what is missing)
except ImportError as error:
    raise ImportError("fedwcm.flower needs Flower: pip install 'fedwcm[flower]'") from error

from fedwcm.flower.client.app import add_training, client_app
from fedwcm.flower.server.deployment import server_app
from fedwcm.flower.server.strategy import Strategy

__all__ = ["Strategy", "add_training", "client_app", "server_app"]
