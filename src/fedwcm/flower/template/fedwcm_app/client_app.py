"""A client: which model, and its own data."""

from fedwcm.flower import client_app

from .task import client_data, model

app = client_app(model=model, data=client_data)
