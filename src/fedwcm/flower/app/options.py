"""Flower's run-config, read as our own options.

Tables under `[tool.flwr.app.config]` and dotted keys of `--run-config` reach an app under the names that our
options have everywhere: `method.name`, `local.lr`, `run.rounds`. The section `flower` is what only a federation of
real clients needs; keys under `app` belong to whoever writes the app.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, TypeVar

import torch

from fedwcm.config.options import make
from fedwcm.config.schema import COMPONENTS, SECTIONS, Config
from fedwcm.config.settings import Settings, from_settings, method_settings, overlay
from fedwcm.core.checks import require, require_allowed, unknown
from fedwcm.core.method import Method
from fedwcm.core.ranges import Count, CountOrZero, NonNegative, Positive, Range, Share
from fedwcm.engine.uploads import why_not_robust
from fedwcm.experiment.components import Components
from fedwcm.privacy.options import PrivacyOptions

ELSEWHERE = {"data": "the data function", "partition": "the data function", "model": "the model function"}
"""Sections of the simulator that an app writes in Python instead."""
AUGMENTATION = ("data.augment", "data.crop_padding")
"""Options of these sections that are part of training."""

ON_NODES = "clients train on their own nodes"
NO_VALIDATION = "the server holds no validation data"
SIMULATOR_ONLY = {
    "run.backend": ON_NODES,
    "run.workers": ON_NODES,
    "run.ray_address": ON_NODES,
    "run.worker_gpus": ON_NODES,
    "run.spread": ON_NODES,
    "run.select_by": NO_VALIDATION,
    "run.patience": NO_VALIDATION,
    "run.reject_nonfinite": "an update that is not finite is never used",
    "run.checkpoint_every": "clients keep the states of two rounds, so the server saves every round",
}
"""Options that have one value on Flower, with the reason."""
FLOWER_DEFAULTS: Settings = {
    "run.checkpoint_every": 1,
    "aggregation.max_share": 0.2,
    "aggregation.norm_ratio": 2.0,
}
"""Defaults that are others than the simulator's: one of its clients cannot be somebody who lies."""
NEED_COUNTS = ("train_set", "clients")
"""Diagnostics for which the server would need what only clients have."""
HIDING = 2
"""How many more clients than secure sums a round must have at least: as many sums would determine every upload."""

WIDEST_RANGE = 1e6
"""Widest range for secure sums: its steps, of which there are some 2³⁰, would be coarser than any upload."""


@dataclass(frozen=True, kw_only=True)
class FlowerOptions:
    """What only a federation of real clients needs.

    Args:
        clients: how many there are, numbered from 0; 0 takes those that are connected when the run starts.
        min_clients: answers that a round needs to change the model, and clients that a run needs to start.
        min_available: clients that must be connected before round 1, if that is more than `min_clients`.
        min_evaluate: clients that evaluate a model at least, if `fraction_evaluate` asks any.
        timeout: seconds that clients have for an answer.
        enough: usable answers after which the training of a round waits only `grace` seconds more; 0 waits for all
            clients, as evaluation always does.
        grace: seconds that the others have once enough clients have answered.
        patience: seconds to wait, before round 1, for clients that are not connected yet.
        fraction_evaluate: share of the clients that test the model on their own data, at every evaluation.
        own_mix: clients test the model for the class mix of their own training samples, not for that of all.
        bind_nodes: a client's number belongs to the first Flower node that claims it, for the whole run. It needs
            node authentication, under which a node keeps its id as long as its key.
        secure_aggregation: clients keep their uploads, and the server learns only sums of them, by SecAgg+. Their
            apps must have Flower's `secaggplus_mod`.
        secure_range: largest entry of an upload, by magnitude, that can be summed securely; at most 1e6.
        share_metrics: clients tell their training loss and accuracy, and evaluate models, also where the run
            protects counts or uploads; from these numbers a server can read class counts.
        max_samples: largest number of samples that a client may claim; 0 for ten times the median of the others,
            from four clients on.
        out: absolute path of a folder on the server for metrics, checkpoints and the model; a run found there is
            continued.
    """

    clients: CountOrZero = 0
    min_clients: Count = 1
    min_available: CountOrZero = 0
    min_evaluate: CountOrZero = 0
    timeout: Positive = 600.0
    enough: CountOrZero = 0
    grace: NonNegative = 10.0
    patience: NonNegative = 300.0
    fraction_evaluate: Share = 0.0
    own_mix: bool = False
    bind_nodes: bool = True
    secure_aggregation: bool = False
    secure_range: Annotated[float, Range(0, WIDEST_RANGE, open="low")] = 8.0
    share_metrics: bool = False
    max_samples: CountOrZero = 0
    out: str = ""

    def __post_init__(self) -> None:
        require_allowed(self)
        sufficient = not self.enough or self.enough >= self.min_clients
        require(sufficient, "enough", self.enough, "0 (wait for all), or at least min_clients")
        evaluates = not self.own_mix or self.fraction_evaluate > 0
        require(evaluates, "own_mix", self.own_mix, "false without fraction_evaluate: clients test no model then")
        fixed = not self.out or Path(self.out).is_absolute()
        require(fixed, "out", self.out, "an absolute path, or empty: the server app runs in a folder of Flower's")


def require_discreet(method: Method, privacy: PrivacyOptions, secure: bool) -> None:
    """Raise ValueError if clients would upload in plain numbers what the run hides: both sides check."""
    uploaded = f"another with privacy and without flower.secure_aggregation: its clients upload {method.discloses}"
    require(not (method.discloses and privacy.protects and not secure), "method.name", method.name, uploaded)


@dataclass(frozen=True)
class AppOptions:
    """All options of a run on Flower."""

    config: Config
    federation: FlowerOptions

    @property
    def hiding(self) -> int:
        """Clients of which no combination of secure sums may consist: one less than an encrypted sum needs."""
        privacy = self.config.privacy
        return max(HIDING, privacy.min_contributors - 1) if privacy.mode == "he" else HIDING

    def require_shared_metrics(self, method: Method) -> None:
        """Raise ValueError for a need of numbers that private runs withhold, since they tell class counts."""
        flower = self.federation
        if flower.share_metrics or not (self.config.privacy.protects or flower.secure_aggregation):
            return
        why = "in a run with privacy or secure aggregation: accuracies of chosen models tell class counts"
        asked, allowed = flower.fraction_evaluate, f"0 {why} (flower.share_metrics)"
        require(not asked, "flower.fraction_evaluate", asked, allowed)
        needed = "one that reads no training losses, which clients withhold with privacy (flower.share_metrics)"
        require(not method.reads_losses, "method.name", method.name, needed)

    def require_reachable(self, clients: int) -> None:
        """Raise ValueError if a round over this many clients could never have the answers that it needs."""
        sampled, needed = self.config.participation, self.federation.min_clients
        most = sampled.cohort_size(clients) if sampled.sampling != "bernoulli" else clients
        why = f"participation.fraction = {sampled.fraction:g} asks {most} of {clients} clients in a round"
        require(needed <= most, "flower.min_clients", needed, f"at most {most}, as {why}")
        fewest, secure = 1 + self.hiding, self.federation.secure_aggregation
        hidden = f"false, or flower.clients and participation.fraction larger: {why}, a secure sum needs {fewest}"
        require(not secure or most >= fewest, "flower.secure_aggregation", secure, hidden)


def read(run_config: Mapping[str, object]) -> AppOptions:
    """Return the options in a run-config; what is not given has its default, and an error names the key.

    `method.name` takes all that `--method` takes: a method, a recipe, options in brackets. It takes precedence.
    """
    run_options = {key: value for key, value in run_config.items() if not key.startswith("app.")}
    federation = {k.removeprefix("flower."): v for k, v in run_options.items() if k.startswith("flower.")}
    settings = {k: v for k, v in run_options.items() if not k.startswith("flower.")}
    _refuse_sections(settings)
    typed = settings.get("method.name")
    chosen = method_settings(str(typed or Config().method.name))
    if typed is not None:
        chosen = {"run.name": typed, **chosen}
    below: Settings = {**FLOWER_DEFAULTS, **settings, "method.name": chosen["method.name"]}
    flower = make(FlowerOptions, federation, "flower")
    config = _without_unusable_ratio(from_settings(overlay(below, chosen)), flower.secure_aggregation)
    _refuse_simulator_only(config)
    options, method = AppOptions(config, flower), Components.of(config).method
    require_discreet(method, config.privacy, flower.secure_aggregation)
    options.require_shared_metrics(method)
    if options.federation.clients:
        options.require_reachable(options.federation.clients)
    return options


def _without_unusable_ratio(config: Config, secure: bool) -> Config:
    """Return the options without the default bound on norms where the server could not apply it."""
    aggregation = config.aggregation
    if aggregation.norm_ratio != FLOWER_DEFAULTS["aggregation.norm_ratio"]:
        return config
    if not secure and why_not_robust(Components.of(config).method, torch.zeros(1)) is None:
        return config
    return replace(config, aggregation=replace(aggregation, norm_ratio=None))


def _refuse_sections(settings: Mapping[str, object]) -> None:
    for key in settings:
        section = key.partition(".")[0]
        if section in ELSEWHERE and key not in AUGMENTATION:
            raise ValueError(f"{key} is not an option on Flower: {ELSEWHERE[section]} of the app decides")
        if section not in (*COMPONENTS, *SECTIONS):
            known = {*COMPONENTS, *SECTIONS, "flower", "app"} - {*ELSEWHERE}
            raise unknown("section of the run-config:", section, known)


def _refuse_simulator_only(config: Config) -> None:
    """Refuse options without effect, and those that would end the run after its clients have sent their counts."""
    fixed = from_settings(FLOWER_DEFAULTS).run
    for key, reason in SIMULATOR_ONLY.items():
        name = key.removeprefix("run.")
        value, only = getattr(config.run, name), getattr(fixed, name)
        require(value == only, key, value, f"{only!r} on Flower: {reason}")
    for diagnostic in config.run.diagnostics:
        reason = "on Flower: the server has no client's data"
        require(diagnostic not in NEED_COUNTS, "run.diagnostics", diagnostic, f"none of {NEED_COUNTS} {reason}")


T = TypeVar("T")


def with_run_config(function: Callable[..., T], run_config: Mapping[str, object]) -> Callable[..., T]:
    """Return the function, with Flower's run-config bound to it if it has a parameter `run_config`."""
    return partial(function, run_config=run_config) if "run_config" in signature(function).parameters else function
