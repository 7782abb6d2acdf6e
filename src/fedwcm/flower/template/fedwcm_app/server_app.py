"""The server: which model, and what it is tested on. `evaluate=None` if the server has no data."""

from fedwcm.flower import server_app

from .task import model, test_data

app = server_app(model=model, evaluate=test_data)
