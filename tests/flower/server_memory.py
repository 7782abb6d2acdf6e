"""Memory that a round of the server takes, by the number of clients: `python -m tests.flower.server_memory`.

The clients of this grid train when their answers are fetched, one after the other, so that the memory of this
process is the server's, one client's training and Flower's messages.
"""

import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from torch import nn

from fedwcm.flower import client_app
from fedwcm.flower.server.deployment import serve

from .wire import WireGrid

PARAMETERS, CLASSES = 1_000_000, 10


class LazyGrid(WireGrid):
    """Holds messages back until their answers are fetched, as a SuperLink in another process does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            self._sent += 1
            name = f"message-{self._sent}"
            message.metadata.__dict__["_message_id"] = name
            self._waiting[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answer(self._waiting.pop(name)) for name in message_ids if name in self._waiting]

    def _answer(self, message: Message) -> Message:
        request = message_from_proto(message_to_proto(message))
        reply = self.nodes[message.metadata.dst_node_id].handle(request)
        return message_from_proto(message_to_proto(reply))


def model() -> nn.Module:
    return nn.Linear(PARAMETERS // CLASSES - 1, CLASSES)


def data(node_config: Any) -> tuple[Any, Any]:
    return torch.randn(4, PARAMETERS // CLASSES - 1), torch.arange(4)


def status(entry: str) -> int:
    """An entry of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(entry + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(entry)


def measured(clients: int) -> tuple[int, int]:
    """Bytes of memory of its own: before a run, and at most during it."""
    config: dict[str, Any] = {
        "method.name": "fedwcm",
        "flower.clients": clients,
        "participation.fraction": 1.0,
        "run.rounds": 2,
        "local.epochs": 1,
        "run.device": "cpu",
    }
    grid = LazyGrid(client_app(model=model, data=data), config, clients)
    peaks, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peaks.append(max(peaks[-1], status("RssAnon")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = status("RssAnon")
    serve(grid, config, model)
    done.set()
    watcher.join()
    return before, peaks[-1]


def main() -> None:
    print("clients  MB more than before the run, and in uploads")
    for clients in (5, 20, 80, 160, 320):
        command = [sys.executable, "-m", "tests.flower.server_memory", str(clients)]
        sizes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        more = int(sizes[-1]) - int(sizes[-2])
        print(f"{clients:7}  {more / 1e6:6.0f}  {more / (4 * PARAMETERS):5.1f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*measured(int(sys.argv[1])))
    else:
        main()
