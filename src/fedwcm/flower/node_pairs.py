"""Which node may be which client: the pairs of a run, in a file that can also be written beforehand."""

import json
from pathlib import Path

from fedwcm.flower.untrusted import UnusableError
from fedwcm.runs.files import write_json

NAME = "nodes.json"


class NodePairs:
    """Clients and the Flower nodes that they belong to.

    With node authentication a node's id stands for its key. Without it a restarted node has another id, and pairs
    that are kept would lock it out.

    Args:
        bound: whether a client belongs to the first node that claims it; otherwise nothing is kept.
        folder: where the pairs are kept, as `{"client": node}` in `nodes.json`; None for this process only.
    """

    def __init__(self, bound: bool, folder: Path | None) -> None:
        self._bound = bound
        self._path = folder / NAME if bound and folder is not None else None
        self._nodes: dict[int, int] = {}
        if self._path is not None and self._path.exists():
            self._nodes = _read(self._path)

    def claim(self, client: int, node: int) -> None:
        """Note that this node is this client; raises an UnusableError if the client belongs to another."""
        if not self._bound or self._nodes.get(client) == node:
            return
        if client in self._nodes:
            raise UnusableError(f"it claims to be client {client}, which belongs to node {self._nodes[client]}")
        if node in self._nodes.values():
            mine = next(c for c, owner in self._nodes.items() if owner == node)
            raise UnusableError(f"it claims to be client {client}, but it is registered as client {mine}")
        self._nodes[client] = node
        if self._path is not None:
            pairs = {str(c): owner for c, owner in sorted(self._nodes.items())}
            write_json(self._path, pairs)


def _read(path: Path) -> dict[int, int]:
    try:
        pairs = {int(client): int(node) for client, node in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f'{path} cannot be read ({error}): it must hold {{"client": node id, …}}') from None
    if len(set(pairs.values())) < len(pairs):
        raise ValueError(f"{path} assigns one node to two clients")
    return pairs
