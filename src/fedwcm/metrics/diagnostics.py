"""Diagnostics that are measured while a model is tested: angles, and how specific each neuron is to one class.

For neuron j, a_jc ≥ 0 is its mean activation on class c and π_jc = a_jc / Σ_c a_jc the share of the class. The
concentration of the neuron is 1 − H(π_j) / log C: 1 if it fires for one class only, 0 if it fires equally for all.
That of a layer is the mean over the neurons that fire at all, that of the network the mean over its layers.

It is measured during passes that are needed anyway: `ActivationRecorder` records their activations. More in
docs/diagnostics.md.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from fedwcm.core.batch import Federation
from fedwcm.core.types import Floats, Ints, Vec
from fedwcm.engine.network import Network
from fedwcm.metrics.classification import ShotRule, shot_groups


def mean_angle(rows: Floats) -> float | None:
    """Return the mean angle in degrees over all pairs of rows, without rows of zeros; None if there is no pair."""
    from scipy.spatial.distance import pdist  # here: most runs do not need scipy

    directed = rows[np.abs(rows).max(axis=1, initial=0) > 0]
    if len(directed) < 2:
        return None
    cosines = 1 - pdist(directed.astype(float), metric="cosine")
    return float(np.degrees(np.arccos(np.clip(cosines, -1, 1))).mean())


@contextmanager
def diagnosing(
    wanted: Collection[str], network: Network, labels: Tensor, train_counts: Ints, rule: ShotRule = "range"
) -> Iterator[dict[str, object]]:
    """Yield a record that is filled from the evaluation inside the block, which must keep the order of samples."""
    record: dict[str, object] = {}
    if "concentration" not in wanted:
        yield record
        return
    with ActivationRecorder(network, labels, len(train_counts)) as recorder:
        yield record
    layers = {name: layer_concentration(means) for name, means in recorder.means().items()}
    record["concentration"] = mean_concentration(layers)
    record["concentration_layers"] = layers
    record.update(_angles(network, train_counts, rule))


def _angles(network: Network, train_counts: Ints, rule: ShotRule) -> dict[str, object]:
    """Return the mean angles between the classifier's rows, over all classes and over those with few samples."""
    if network.head is None or network.head.out_features != len(train_counts):
        return {"classifier_angle": None, "minority_angle": None}
    rows: Floats = network.head.weight.detach().cpu().double().numpy()
    few = shot_groups(train_counts, rule).get("few", np.empty(0, dtype=np.int64))
    return {"classifier_angle": mean_angle(rows), "minority_angle": mean_angle(rows[few])}


def train_set_metrics(network: Network, federation: Federation, x: Vec, buffers: Vec) -> dict[str, object]:
    """Return f(x), the accuracy, and ‖∇f(x)‖², for f the mean cross-entropy over the samples of all clients.

    The model is in evaluation mode: without dropout, augmentation and weight decay. Its logits are on the scale
    of the loss.
    """
    network.point_parameters(x.clone())
    network.point_buffers(buffers.clone())
    network.module.eval()
    parameters = [parameter for _, parameter in network.parameters]
    gradient, loss, correct = torch.zeros_like(x), 0.0, 0
    for client in range(len(federation.samples)):
        shard = federation.shard(client)
        rows = torch.from_numpy(shard.rows).to(network.device)
        labels = shard.store.labels[rows]
        logits = network.predict(shard.store.inputs[rows])
        total = cross_entropy(logits, labels, reduction="sum")
        gradients = torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
        gradient += network.layout.flatten(list(gradients))
        loss += float(total.detach())
        correct += int((logits.argmax(dim=-1) == labels).sum())
    samples = int(federation.samples.sum())
    return {
        "train_set_loss": loss / samples,
        "train_set_accuracy": correct / samples,
        "gradient_norm_squared": float((gradient / samples).double().square().sum()),
    }


PER_CLASS = 100
"""Samples of each class whose activations are recorded: the first ones, whatever the size of a pass."""

_RECTIFIERS = ("celu", "elu", "gelu", "hardswish", "leaky_relu", "mish", "prelu", "relu", "relu6", "selu", "silu")
_OTHERS = ("glu", "rrelu", "hardtanh", "sigmoid", "softplus", "tanh")
ACTIVATIONS = frozenset({*_RECTIFIERS, *_OTHERS})
"""Activation functions of torch, whether called as a module, a function or a method of a tensor."""

FEATURES = "features"
"""The layer name of the input of the classifier."""


def layer_concentration(means: Floats) -> float | None:
    """Return the mean concentration of the neurons that fire; None if none does or if there is only one class."""
    from scipy.special import entr  # here: most runs do not need scipy

    classes = len(means)
    total = means.sum(axis=0)
    fires = np.isfinite(total) & (total > 0)
    if classes < 2 or not fires.any():
        return None
    share = means[:, fires] / total[fires]
    return float(np.mean(1 - entr(share).sum(axis=0) / np.log(classes)))


def mean_concentration(layers: Mapping[str, float | None]) -> float | None:
    """Return the mean over the layers that have one."""
    known = [value for value in layers.values() if value is not None]
    return float(np.mean(known)) if known else None


class ActivationRecorder:
    """Records the activations of a network while samples with these labels pass through it, in this order.

    with ActivationRecorder(network, labels, classes) as recorder:
        evaluate(network, x, buffers, inputs, labels, classes)
    {layer: layer_concentration(means) for layer, means in recorder.means().items()}

    Layers are the outputs of the functions in `ACTIVATIONS`, each named after the layer with weights before it
    (linear, convolutional, recurrent, an embedding), and the input of the classifier, unless that repeats the last
    activation. Neurons are on the axis of that layer's outputs: the second for a convolution, the last for all
    others. The other axes are positions, over which the mean is taken. Only the positive part of an activation
    counts: GELU also has a negative one.
    """

    def __init__(self, network: Network, labels: Tensor, classes: int) -> None:
        self._network, self._classes = network, classes
        self._labels = labels.cpu()
        self._chosen = torch.from_numpy(_first_of_each(self._labels.numpy(), PER_CLASS))
        self._samples = torch.bincount(self._labels[self._chosen], minlength=classes).numpy()
        self._sums: dict[str, Tensor] = {}
        self._position = 0
        self._pass = _Pass()
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        module, head = self._network.module, self._network.head
        hooks = [module.register_forward_pre_hook(self._begin)]
        if head is not None:
            hooks.append(head.register_forward_pre_hook(self._enter_head))
        for name, layer in module.named_modules():
            if isinstance(layer, (nn.Linear, _ConvNd, nn.Embedding, nn.RNNBase)):
                hooks.append(layer.register_forward_hook(self._name_layer(name)))
        for hook in hooks:
            self._hooks.callback(hook.remove)
        self._hooks.enter_context(_ActivationMode(self._record))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.close()

    def means(self) -> dict[str, Floats]:
        """Return the mean positive activation `(classes with samples, neurons)` of each layer, in its order."""
        present = self._samples > 0
        samples = self._samples[present, None]
        return _without_repeated_features({n: sums.numpy()[present] / samples for n, sums in self._sums.items()})

    def _begin(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        start, size = self._position, len(arguments[0])
        self._position += size
        rows = torch.nonzero(self._chosen[start : start + size]).squeeze(1)
        image = arguments[0].dim() == 4
        self._pass = _Pass(size, rows, self._labels[start + rows], axis=1 if image else -1)

    def _name_layer(self, name: str) -> Callable[..., None]:
        def remember(layer: nn.Module, *_: object) -> None:
            self._pass.layer, self._pass.axis = name, 1 if isinstance(layer, _ConvNd) else -1

        return remember

    def _enter_head(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._add(FEATURES, arguments[0], -1)

    def _record(self, output: Tensor) -> None:
        self._add(self._pass.layer, output, self._pass.axis)

    def _add(self, layer: str, output: Tensor, axis: int) -> None:
        current = self._pass
        if not len(current.rows) or output.dim() < 2 or len(output) != current.size:
            return
        name = current.number_layer(layer)
        values = output.detach()[current.rows.to(output.device)].clamp_(min=0)
        positions = [other for other in range(1, output.dim()) if other != axis % output.dim()]
        means = values.mean(dim=positions) if positions else values
        sums = one_hot(current.labels, self._classes).double().T @ means.cpu().double()
        self._sums[name] = self._sums[name] + sums if name in self._sums else sums


@dataclass(eq=False)
class _Pass:
    """One pass through the network: its size, the recorded rows and their labels, the layer that ran last."""

    size: int = 0
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    layer: str = "input"
    axis: int = -1
    uses: dict[str, int] = field(default_factory=dict)

    def number_layer(self, layer: str) -> str:
        """Return the name of the layer, numbered from its second activation in a pass."""
        self.uses[layer] = self.uses.get(layer, 0) + 1
        return layer if self.uses[layer] == 1 else f"{layer}#{self.uses[layer]}"


class _ActivationMode(TorchFunctionMode):
    """Calls a function with the output of every activation function, however the model calls it."""

    def __init__(self, record: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if getattr(function, "__name__", "").rstrip("_") in ACTIVATIONS:
            self._record(output)
        return output


def _first_of_each(labels: Ints, limit: int) -> NDArray[np.bool_]:
    """Return a mask of the first `limit` samples of each class."""
    order = np.argsort(labels, kind="stable")
    firsts = np.searchsorted(labels[order], labels[order])
    chosen = np.empty(len(labels), dtype=bool)
    chosen[order] = np.arange(len(labels)) - firsts < limit
    return chosen


def _without_repeated_features(means: Mapping[str, Floats]) -> dict[str, Floats]:
    """Drop the input of the classifier, if it is the last activation or its mean over positions."""
    names = list(means)
    if FEATURES in names and len(names) > 1:
        last, features = means[names[names.index(FEATURES) - 1]], means[FEATURES]
        if last.shape == features.shape and np.allclose(last, features, rtol=1e-4, atol=1e-6 * abs(last).max()):
            return {name: layer for name, layer in means.items() if name != FEATURES}
    return dict(means)
