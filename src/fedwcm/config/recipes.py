"""Recipes: named combinations of a method, a loss, a sampler and options. `--method` accepts their names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Recipe:
    """A named set of dotted options, including `method.name`."""

    description: str
    settings: dict[str, object]


def _long_tail(method: str, title: str, **options: object) -> Recipe:
    """Return the recipe for rare classes around a method: docs/results/recipe.md says what each part earns."""
    return Recipe(
        f"{title} for rare classes: the gathered distribution in the loss, on normalised logits; class-balanced "
        "batches; an average of the model over rounds",
        {
            "method.name": method,
            "loss.name": "prior_ce",
            "loss.prior": "global",
            "loss.normalize": True,
            "loss.scale": 10.0,
            "sampler.name": "balanced",
            "server.ema": 0.9,
            **{f"method.{key}": value for key, value in options.items()},
        },
    )


_PRINTED: dict[str, object] = {
    "method.score": "absolute",
    "method.alpha_rule": "temperature",
    "method.server_step": "literal",
    "method.temperature_scale": 1.0,
}
"""The printed readings of Eqs. 3 and 5 and of the server's step."""


def _natural(description: str, **options: object) -> Recipe:
    """Return a recipe for clients and tails that nobody made: docs/results/natural.md measures it."""
    method = {"alpha_rule": "heterogeneity", "rate_limit": 1.0}
    recipe = _long_tail("fedwcm-x", "", **method).settings
    return Recipe(description, {key: value for key, value in recipe.items() if key != "sampler.name"} | options)


RECIPES: dict[str, Recipe] = {
    "fedwcm+longtail": _long_tail("fedwcm", "FedWCM, its weights with FedCM's constant alpha,", adaptive=False),
    "fedcm+longtail": _long_tail("fedcm", "FedCM"),
    "fedavg+longtail": _long_tail("fedavg", "FedAvg"),
    "feddyn+longtail": _long_tail("feddyn", "FedDyn"),
    "fedwcm-natural": _natural(
        "FedWCM-X for natural clients and tails: alpha by how much the clients differ; the gathered distribution "
        "in the loss, on normalised logits; an average of the model over rounds",
    ),
    "fedwcm-natural-balanced": _natural(
        "As fedwcm-natural, with class-balanced batches and half the correction in the loss",
        **{"sampler.name": "balanced", "loss.tau": 0.5},
    ),
    "fedcm-nominal": Recipe(
        "FedCM as in the paper's tables: the momentum divided by E·n/b, a fraction of the steps taken",
        {"method.name": "fedcm", "method.momentum_norm": "nominal"},
    ),
    "fedcm-nominal+focal": Recipe(
        "FedCM as in the paper's tables, with focal loss",
        {"method.name": "fedcm", "method.momentum_norm": "nominal", "loss.name": "focal"},
    ),
    "fedcm-nominal+balance-loss": Recipe(
        "FedCM as in the paper's tables, with balanced softmax and each client's own class distribution as prior",
        {
            "method.name": "fedcm",
            "method.momentum_norm": "nominal",
            "loss.name": "prior_ce",
            "loss.prior": "client",
        },
    ),
    "fedcm-nominal+balance-sampler": Recipe(
        "FedCM as in the paper's tables, with class-balanced batches",
        {"method.name": "fedcm", "method.momentum_norm": "nominal", "sampler.name": "balanced"},
    ),
    "fedwcm-literal": Recipe(
        "FedWCM as printed in Eqs. 3-5 and Algorithm 1, but for the sign; T has no formula there, K two meanings",
        {"method.name": "fedwcm", **_PRINTED},
    ),
    "fedwcm-x-literal": Recipe(
        "FedWCM-X as printed in Algorithm 2, with the same limits; its weights do not sum to 1",
        {"method.name": "fedwcm-x", **_PRINTED, "method.normalize": False},
    ),
    "fedcm+focal": Recipe("FedCM with focal loss", {"method.name": "fedcm", "loss.name": "focal"}),
    "fedcm+balance-loss": Recipe(
        "FedCM with balanced softmax and each client's own class distribution as prior",
        {"method.name": "fedcm", "loss.name": "prior_ce", "loss.prior": "client"},
    ),
    "fedcm+balance-sampler": Recipe(
        "FedCM with class-balanced batches",
        {"method.name": "fedcm", "sampler.name": "balanced"},
    ),
    "fedwcm+prior_ce": Recipe(
        "FedWCM with balanced softmax and the gathered class distribution as prior",
        {"method.name": "fedwcm", "loss.name": "prior_ce", "loss.prior": "global"},
    ),
    "fedavg+prior_ce": Recipe(
        "FedAvg with balanced softmax and the gathered class distribution as prior",
        {"method.name": "fedavg", "loss.name": "prior_ce", "loss.prior": "global"},
    ),
    "balancefl": Recipe(
        "BalanceFL: FedAvg with its loss (distillation over absent classes, noise on features) and sampler",
        {"method.name": "fedavg", "loss.name": "balancefl", "sampler.name": "balanced"},
    ),
    "fedlc": Recipe(
        "FedLC: FedAvg with logits calibrated by each client's class counts",
        {"method.name": "fedavg", "loss.name": "fedlc"},
    ),
    "fedrs": Recipe(
        "FedRS: FedAvg with a softmax that restricts the classes that a client does not have",
        {"method.name": "fedavg", "loss.name": "fedrs"},
    ),
    "fedntd": Recipe(
        "FedNTD: FedAvg with distillation from the received model over the classes that a sample does not have",
        {"method.name": "fedavg", "loss.name": "fedntd"},
    ),
    "moon": Recipe(
        "MOON: FedAvg with a contrast between the received model and the client's last one",
        {"method.name": "fedavg", "loss.name": "moon"},
    ),
    "fedproto": Recipe(
        "FedProto: clients train models of their own, with class means of the features in common",
        {"method.name": "fedproto", "loss.name": "fedproto"},
    ),
    "vs": Recipe(
        "FedAvg with the VS loss: logits scaled and shifted by the gathered class distribution",
        {"method.name": "fedavg", "loss.name": "vs"},
    ),
    "fedgrab": Recipe(
        "Fed-GraB: its server, which estimates the rare classes, with its loss, which balances their gradients",
        {"method.name": "fedgrab", "loss.name": "grab"},
    ),
    "fedetf": Recipe(
        "FedETF: a fixed simplex frame as classifier, with balanced softmax on normalised features",
        {
            "method.name": "fedetf",
            "loss.name": "prior_ce",
            "loss.prior": "client",
            "loss.normalize": True,
            "loss.scale": 10.0,
        },
    ),
    "fedloge": Recipe(
        "FedLoGe: a fixed sparse frame trains the features, and the head that follows them is realigned",
        {"method.name": "fedloge", "loss.name": "fedloge"},
    ),
    "fedrela": Recipe(
        "FedReLa: late in training, samples that look like a rarer class are given its label",
        {"method.name": "fedrela", "loss.name": "fedrela"},
    ),
    "rucr": Recipe(
        "RUCR: features pulled towards class means of all clients, and a head re-trained on mixtures with them",
        {"method.name": "rucr", "loss.name": "rucr"},
    ),
    "fedyoyo": Recipe(
        "FedYoYo: self-distillation between two views of a sample, and effective class sizes in the loss",
        {"method.name": "fedyoyo", "loss.name": "fedyoyo"},
    ),
    "clip2fl": Recipe(
        "CLIP2FL: CReFF with class embeddings on the server and a teacher's logits in the clients' loss",
        {"method.name": "clip2fl", "loss.name": "distillation"},
    ),
}

AUTO = "auto"
"""The name in place of a method for the one of `CANDIDATES` that is best on validation data."""

CANDIDATES = ("fedavg", "fedavg+longtail", "fedwcm+longtail", "fedwcm-natural", "fedwcm-natural-balanced")

RECIPE_SETS: dict[str, tuple[str, ...]] = {
    "paper-rows": tuple(name for name in RECIPES if name.startswith("fedcm-nominal")),
}
"""Names for several recipes at once, where several methods are expected."""


def expand_sets(methods: Sequence[T]) -> list[T | str]:
    """Return the methods, with the members of a set in place of its name."""
    return [member for method in methods for member in _members(method)]


def _members(method: T) -> tuple[T | str, ...]:
    return RECIPE_SETS.get(method, (method,)) if isinstance(method, str) else (method,)
