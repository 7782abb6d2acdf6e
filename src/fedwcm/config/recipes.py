"""Recipes: named combinations of a method, its options, a loss and a sampler. `--method` accepts their names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """A named set of dotted options, including `method.name`."""

    description: str
    settings: dict[str, object]


RECIPES: dict[str, Recipe] = {
    "fedcm-nominal": Recipe(
        "FedCM as in the paper's tables: the momentum divided by E·n/b, a fraction of the steps taken",
        {"method.name": "fedcm", "method.momentum_norm": "nominal"},
    ),
    "fedwcm-literal": Recipe(
        "FedWCM exactly as printed in Eqs. 3-5 and Algorithm 1, except for the sign",
        {
            "method.name": "fedwcm",
            "method.score": "absolute",
            "method.alpha_rule": "temperature",
            "method.server_step": "literal",
            "method.temperature_scale": 1.0,
        },
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
    "fedgrab": Recipe(
        "Fed-GraB: its server, which estimates the rare classes, with its loss, which balances their gradients",
        {"method.name": "fedgrab", "loss.name": "grab"},
    ),
    "clip2fl": Recipe(
        "CLIP2FL: CReFF with class embeddings on the server and a teacher's logits in the clients' loss",
        {"method.name": "clip2fl", "loss.name": "distillation"},
    ),
}
