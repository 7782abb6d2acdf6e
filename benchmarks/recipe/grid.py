"""What is compared (arms) and where (cells), as dotted options."""

from benchmarks.recipe.data import FOLDER

Settings = dict[str, object]

MLP: Settings = {
    "data.n_max": 800,
    "partition.clients": 40,
    "participation.fraction": 0.2,
    "model.name": "mlp",
    "model.hidden": [100],
    "local.epochs": 5,
    "local.batch_size": 50,
    "local.lr": 0.1,
    "run.rounds": 80,
    "run.eval_every": 8,
}
CNN: Settings = {
    "data.n_max": 800,
    "partition.clients": 25,
    "participation.fraction": 0.2,
    "model.name": "cnn",
    "model.width": 8,
    "local.epochs": 3,
    "local.batch_size": 50,
    "local.lr": 0.1,
    "local.clip": 10.0,
    "run.rounds": 40,
    "run.eval_every": 4,
}
DIGITS: Settings = {
    "data.dataset": "digits",
    "partition.clients": 20,
    "participation.fraction": 0.25,
    "local.epochs": 5,
    "local.batch_size": 10,
    "local.lr": 0.1,
    "run.rounds": 60,
    "run.eval_every": 6,
}
COMMON: Settings = {"server.ema": 0.9, "run.backend": "auto", "run.workers": 1, "partition.name": "equal"}


def cell(base: Settings, dataset: str, imbalance: float, beta: float) -> Settings:
    """Return the options of a cell."""
    tail: Settings = {"data.imbalance": imbalance, "partition.beta": beta}
    source: Settings = {} if dataset == "digits" else {"data.dataset": str(FOLDER / f"{dataset}.npz")}
    return {**COMMON, **base, **source, **tail}


def cells(phase: str) -> dict[str, Settings]:
    """Return the cells of a phase, `choose` or `judge`."""
    found: dict[str, Settings] = {}
    for imbalance, beta in ((0.1, 0.1), (0.01, 0.1), (0.1, 0.6), (0.01, 0.6)):
        for name, base in (("fashion-mnist", MLP), ("cifar10", CNN)):
            found[f"{name} {imbalance} {beta}"] = cell(base, f"{name}-{phase}", imbalance, beta)
    if phase == "choose":
        return found
    hundred = {**CNN, "data.n_max": 50}
    unseen = {
        "digits 0.1 0.1": cell(DIGITS, "digits", 0.1, 0.1),
        "fashion-mnist 0.05 0.1": cell(MLP, "fashion-mnist-judge", 0.05, 0.1),
        "cifar100 0.1 0.1": cell(hundred, "cifar100-judge", 0.1, 0.1),
    }
    return {**found, **unseen}


def loss(name: str, **options: object) -> Settings:
    """Return the settings of a loss."""
    return {"loss.name": name, **{f"loss.{key}": value for key, value in options.items()}}


def normalized(scale: float = 10.0, tau: float = 1.0) -> Settings:
    """Return the settings of the prior loss on normalised logits."""
    return loss("prior_ce", prior="global", normalize=True, scale=scale, tau=tau)


def arm(method: str, *parts: Settings, **options: object) -> Settings:
    """Return the settings of an arm: a method, its options, and further settings."""
    merged: Settings = {"method.name": method, **{f"method.{key}": value for key, value in options.items()}}
    for part in parts:
        merged |= part
    return merged


BALANCED: Settings = {"sampler.name": "balanced"}
SLOW: Settings = {"local.lr": 0.03}
GLOBAL = loss("prior_ce", prior="global")

CHOOSE: dict[str, Settings] = {
    "fedcm+N": arm("fedcm", normalized()),
    "fedavg": arm("fedavg"),
    "fedcm": arm("fedcm"),
    "fedwcm": arm("fedwcm"),
    "feddyn": arm("feddyn"),
    "fedavg+N": arm("fedavg", normalized()),
    "feddyn+N": arm("feddyn", normalized()),
    "fedwcm+N": arm("fedwcm", normalized()),
    "fedcm+prior_ce": arm("fedcm", GLOBAL),
    "fedcm+N scale 5": arm("fedcm", normalized(5.0)),
    "fedcm+N scale 20": arm("fedcm", normalized(20.0)),
    "ldam": arm("fedavg", loss("ldam")),
    "ldam global": arm("fedavg", loss("ldam", prior="global")),
    "ldam scale 10": arm("fedavg", loss("ldam", scale=10.0)),
    "balancefl": arm("fedavg", loss("balancefl"), BALANCED),
    "balancefl lr 0.03": arm("fedavg", loss("balancefl"), BALANCED, SLOW),
    "balancefl no noise": arm("fedavg", loss("balancefl", draws=0), BALANCED),
    "fedgrab": arm("fedgrab", loss("grab")),
    "fedgrab lr 0.03": arm("fedgrab", loss("grab"), SLOW),
    "sampler": arm("fedavg", BALANCED),
    "sampler fedcm": arm("fedcm", BALANCED),
    "fedcm+N tau 1.5": arm("fedcm", normalized(tau=1.5)),
    "fedcm+N lr 0.03": arm("fedcm", normalized(), SLOW),
    "fedwcm+N weights only": arm("fedwcm", normalized(), adaptive=False),
    "fedwcm+N alpha only": arm("fedwcm", normalized(), weighting=False),
    "fedcm+N balanced sampler": arm("fedcm", normalized(), BALANCED),
    "mofedsam+N": arm("mofedsam", normalized()),
}
"""The arms to choose among; N is the prior loss on normalised logits. Every competitor has a few settings."""

MAIN = ("fedcm+N", "fedavg+N", "feddyn+N", "fedwcm+N", "fedcm", "fedcm+prior_ce", "ldam", "fedcm+N scale 5")
"""The arms that are tried where runs are dear."""


ARMS: dict[str, dict[str, Settings]] = {"choose": CHOOSE}


def blocks(phase: str) -> list[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]]:
    """Return the cells, arms and seeds of a phase in the order of running."""
    tail, mixed = (
        ("fashion-mnist 0.1 0.1", "fashion-mnist 0.01 0.1"),
        ("fashion-mnist 0.1 0.6", "fashion-mnist 0.01 0.6"),
    )
    hard = ("cifar10 0.1 0.1", "cifar10 0.01 0.1")
    return [
        (tail, tuple(CHOOSE), (0,)),
        (hard, MAIN, (0,)),
        (tail, tuple(CHOOSE), (1,)),
        (mixed, MAIN, (0, 1)),
        (hard, MAIN, (1,)),
    ]
