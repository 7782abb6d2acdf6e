"""What is compared (arms) and where (cells), as dotted options."""

from benchmarks.recipe.data import FOLDER

Settings = dict[str, object]
Block = tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]

COMMON: Settings = {
    "server.ema": 0.9,
    "run.workers": 1,
    "partition.name": "equal",
    "local.epochs": 5,
    "local.lr": 0.1,
}
MLP: Settings = {
    "data.n_max": 800,
    "partition.clients": 40,
    "participation.fraction": 0.2,
    "model.name": "mlp",
    "model.hidden": [100],
    "local.batch_size": 50,
    "run.rounds": 80,
    "run.eval_every": 8,
}
CNN: Settings = {
    "data.n_max": 800,
    "partition.clients": 25,
    "participation.fraction": 0.2,
    "model.name": "cnn",
    "model.width": 8,
    "local.batch_size": 20,
    "local.clip": 10.0,
    "run.rounds": 60,
    "run.eval_every": 6,
}
DIGITS: Settings = {
    "partition.clients": 20,
    "participation.fraction": 0.25,
    "local.batch_size": 10,
    "run.rounds": 60,
    "run.eval_every": 6,
}
TAILS = ((0.1, 0.1), (0.01, 0.1), (0.1, 0.6), (0.01, 0.6))
"""Size of the rarest class over the most frequent, and Dirichlet concentration of the clients."""

IMAGES = "cifar10-cnn 0.1 0.1"
"""The cell with a convolutional network."""


def cell(base: Settings, dataset: str, imbalance: float, beta: float) -> Settings:
    """Return the options of a cell."""
    source = dataset if dataset == "digits" else str(FOLDER / f"{dataset}.npz")
    tail: Settings = {"data.dataset": source, "data.imbalance": imbalance, "partition.beta": beta}
    return {**COMMON, **base, **tail}


def cells(phase: str) -> dict[str, Settings]:
    """Return the cells of a phase, `choose`, `judge` or `final`."""
    names = ("fashion-mnist", "cifar10")
    found = {f"{n} {i} {b}": cell(MLP, f"{n}-{phase}", i, b) for n in names for i, b in TAILS}
    if phase == "choose":
        return found
    return {
        **found,
        "digits 0.1 0.1": cell(DIGITS, "digits", 0.1, 0.1),
        "fashion-mnist 0.05 0.1": cell(MLP, f"fashion-mnist-{phase}", 0.05, 0.1),
        "cifar100 0.1 0.1": cell({**MLP, "data.n_max": 50}, "cifar100-judge", 0.1, 0.1),
        IMAGES: cell(CNN, f"cifar10-image-{phase}", 0.1, 0.1),
    }


def loss(name: str, **options: object) -> Settings:
    """Return the settings of a loss."""
    return {"loss.name": name, **{f"loss.{key}": value for key, value in options.items()}}


def normalized(scale: float = 10.0, tau: float = 1.0, prior: str = "global") -> Settings:
    """Return the settings of the prior loss on normalised logits."""
    return loss("prior_ce", prior=prior, normalize=True, scale=scale, tau=tau)


def arm(method: str, *parts: Settings, **options: object) -> Settings:
    """Return the settings of an arm: a method, its options, and further settings."""
    merged: Settings = {"method.name": method, **{f"method.{key}": value for key, value in options.items()}}
    for part in parts:
        merged |= part
    return merged


OWN = "benchmarks.recipe.candidates:"
BALANCED: Settings = {"sampler.name": "balanced"}
SLOW: Settings = {"local.lr": 0.03}
GLOBAL = loss("prior_ce", prior="global")

CHOOSE: dict[str, Settings] = {
    "fedavg": arm("fedavg"),
    "fedcm": arm("fedcm"),
    "fedwcm": arm("fedwcm"),
    "feddyn": arm("feddyn"),
    "fedavg+N": arm("fedavg", normalized()),
    "fedcm+N": arm("fedcm", normalized()),
    "fedwcm+N": arm("fedwcm", normalized()),
    "feddyn+N": arm("feddyn", normalized()),
    "fedcm+prior_ce": arm("fedcm", GLOBAL),
    "fedwcm+prior_ce": arm("fedwcm", GLOBAL),
    "fedwcm+prior_ce balanced sampler": arm("fedwcm", GLOBAL, BALANCED),
    "fedwcm+N scale 5": arm("fedwcm", normalized(5.0)),
    "fedwcm+N weight decay": arm("fedwcm", normalized(), {"local.weight_decay": 0.001}),
    "fedwcm+prior_ce weight decay": arm("fedwcm", GLOBAL, {"local.weight_decay": 0.001}),
    "fedcm+N scale 20": arm("fedcm", normalized(20.0)),
    "fedwcm+N scale 20": arm("fedwcm", normalized(20.0)),
    "fedwcm+N tau 1.25": arm("fedwcm", normalized(tau=1.25)),
    "fedwcm+N lr 0.03": arm("fedwcm", normalized(), SLOW),
    "fedwcm+N own prior": arm("fedwcm", normalized(prior="client")),
    "fedwcm+N weights only": arm("fedwcm", normalized(), adaptive=False),
    "fedwcm+N alpha only": arm("fedwcm", normalized(), weighting=False),
    "fedcm+N balanced sampler": arm("fedcm", normalized(), BALANCED),
    "fedwcm+N balanced sampler": arm("fedwcm", normalized(), BALANCED),
    "fedwcm+N balanced sampler alpha by D": arm("fedwcm", normalized(), BALANCED, alpha_rule="discrepancy"),
    "fedwcm+N balanced sampler alpha 0.1": arm("fedwcm", normalized(), BALANCED, adaptive=False),
    "fedcm+N balanced sampler tau 0.75": arm("fedcm", normalized(tau=0.75), BALANCED),
    "feddyn+N balanced sampler": arm("feddyn", normalized(), BALANCED),
    "fedavg+N balanced sampler": arm("fedavg", normalized(), BALANCED),
    "mofedsam+N balanced sampler": arm("mofedsam", normalized(), BALANCED),
    "fedwcm+N ema 0.8": arm("fedwcm", normalized(), {"server.ema": 0.8}),
    "fedwcm+N ema 0.95": arm("fedwcm", normalized(), {"server.ema": 0.95}),
    "fedwcm+N deferred": arm("fedwcm", loss(f"{OWN}DeferredPrior", prior="global", normalize=True, scale=10.0)),
    "momentum on dual+N": arm(f"{OWN}MomentumDual", normalized()),
    "fedwcm+prior_ce etf": arm("fedwcm", GLOBAL, {"model.name": f"{OWN}etf_mlp", "model.hidden": 100}),
    "mofedsam+N": arm("mofedsam", normalized()),
    "mofedsam+wcm+N": arm("mofedsam+wcm", normalized()),
    "mofedsam+wcm+N balanced sampler": arm("mofedsam+wcm", normalized(), BALANCED),
    "ldam": arm("fedavg", loss("ldam")),
    "ldam global": arm("fedavg", loss("ldam", prior="global")),
    "ldam scale 10": arm("fedavg", loss("ldam", scale=10.0)),
    "balancefl": arm("fedavg", loss("balancefl"), BALANCED),
    "balancefl lr 0.03": arm("fedavg", loss("balancefl"), BALANCED, SLOW),
    "fedgrab": arm("fedgrab", loss("grab")),
    "fedgrab lr 0.03": arm("fedgrab", loss("grab"), SLOW),
    "sampler": arm("fedavg", BALANCED),
    "sampler fedcm": arm("fedcm", BALANCED),
}
"""The arms to choose among; N is the prior loss on normalised logits. Every competitor has a few settings."""

FINALISTS = (
    "fedcm+N",
    "fedwcm+N",
    "fedcm+prior_ce",
    "fedwcm+prior_ce",
    "fedcm+N balanced sampler",
    "fedwcm+N balanced sampler",
    "fedwcm+N balanced sampler alpha by D",
    "fedwcm+N balanced sampler alpha 0.1",
    "mofedsam+N",
    "mofedsam+N balanced sampler",
    "fedcm+N balanced sampler tau 0.75",
    "fedavg+N balanced sampler",
    "feddyn+N balanced sampler",
    "fedwcm+N weight decay",
    "fedwcm+prior_ce weight decay",
    "mofedsam+wcm+N",
    "mofedsam+wcm+N balanced sampler",
    "fedwcm+N tau 1.25",
    "fedavg+N",
    "feddyn+N",
)
"""The arms that are tried with both seeds and, the first of them, where clients are less different."""

JUDGE: dict[str, Settings] = {
    "fedavg": arm("fedavg"),
    "fedcm": arm("fedcm"),
    "fedwcm": arm("fedwcm"),
    "feddyn": arm("feddyn"),
    "fedwcm+": arm("fedwcm", normalized(), BALANCED, adaptive=False),
    "fedcm+": arm("fedcm", normalized(), BALANCED),
    "fedavg+": arm("fedavg", normalized(), BALANCED),
    "feddyn+": arm("feddyn", normalized(), BALANCED),
    "ldam": arm("fedavg", loss("ldam", prior="global")),
    "balancefl": arm("fedavg", loss("balancefl"), BALANCED),
    "fedgrab": arm("fedgrab", loss("grab")),
    "sampler": arm("fedcm", BALANCED),
    "creff": arm("creff"),
}
"""The arms that are judged: bases, the recipe on each, and rivals in the setting that was best in `choose`.

The runs were frozen while the recipes were called `fedwcm+` and so on; tables have the names of today.
"""

RECIPE = "fedwcm+longtail"
DRAWN = ("fedavg", "fedcm", "fedwcm", "feddyn", "balancefl", "fedgrab", "ldam", "sampler", RECIPE)
PARTS = (
    ("distribution in the loss", ("fedwcm+prior_ce", "averaged"), ("fedwcm", "averaged")),
    ("normalised logits", ("fedwcm+N", "averaged"), ("fedwcm+prior_ce", "averaged")),
    ("balanced batches", ("fedwcm+N balanced sampler", "averaged"), ("fedwcm+N", "averaged")),
    (
        "average over rounds",
        ("fedwcm+N balanced sampler alpha 0.1", "averaged"),
        ("fedwcm+N balanced sampler alpha 0.1", "plain"),
    ),
    ("momentum", ("fedcm+N balanced sampler", "averaged"), ("fedavg+N balanced sampler", "averaged")),
    (
        "FedWCM's weights",
        ("fedwcm+N balanced sampler alpha 0.1", "averaged"),
        ("fedcm+N balanced sampler", "averaged"),
    ),
    (
        "FedWCM's adaptive alpha",
        ("fedwcm+N balanced sampler", "averaged"),
        ("fedwcm+N balanced sampler alpha 0.1", "averaged"),
    ),
    ("FedDyn's dual", ("feddyn+N balanced sampler", "averaged"), ("fedavg+N balanced sampler", "averaged")),
)
"""What each part earns: two arms of `choose` that differ in it, averaged over rounds or the last model."""

ARMS = {"choose": CHOOSE, "judge": JUDGE, "final": JUDGE}


def blocks(phase: str) -> list[Block]:
    """Return the cells, arms and seeds of a phase in the order of running."""
    tails = tuple(f"{name} {i} 0.1" for i in (0.01, 0.1) for name in ("cifar10", "fashion-mnist"))
    mixed = tuple(f"{name} {i} 0.6" for i in (0.01, 0.1) for name in ("cifar10", "fashion-mnist"))
    if phase == "judge":
        return _judged(tails, mixed)
    if phase == "final":
        return _final()
    rivals = ("ldam", "ldam global", "ldam scale 10", "balancefl", "sampler", "sampler fedcm")
    bases = ("fedcm", "fedwcm", "fedavg", "feddyn")
    plus = (*(f"{base}+N" for base in bases), *(f"{base}+N balanced sampler" for base in bases))
    return [
        (tails, FINALISTS, (0,)),
        (tails, plus, (1,)),
        (mixed, plus, (0,)),
        (tails, ("fedwcm", "fedwcm+prior_ce"), (0, 1)),
        (tails, FINALISTS, (1,)),
        (mixed, tuple(arm for arm in FINALISTS if "balanced sampler" in arm and "tau" not in arm), (0,)),
        (tails, rivals, (0,)),
        (tails, tuple(CHOOSE), (0,)),
    ]


def _judged(tails: tuple[str, ...], mixed: tuple[str, ...]) -> list[Block]:
    seeds, twins = (10, 11, 12, 13, 14), ("fedavg+", "feddyn+")
    arms = tuple(arm for arm in JUDGE if arm not in (*twins, "creff"))
    cells = (tails[1], tails[2], "fashion-mnist 0.05 0.1", tails[0], "cifar100 0.1 0.1", tails[3])
    digits = "digits 0.1 0.1"
    return [
        ((digits,), (*arms, *twins), seeds),
        *(((cell,), arms, seeds) for cell in cells),
        ((digits,), ("creff",), seeds),
        (cells, twins, seeds),
        *(((cell,), (*arms, *twins), seeds) for cell in mixed),
        ((IMAGES,), (*arms, *twins), seeds),
        *(((cell,), ("creff",), seeds) for cell in cells),
    ]


def _final() -> list[Block]:
    """Return the last judgement: seeds that no phase before had; CReFF, which is slow, is left out."""
    seeds, arms = tuple(range(100, 110)), tuple(arm for arm in JUDGE if arm != "creff")
    vectors = tuple(name for name in cells("final") if name != IMAGES)
    few = ("fedavg", "fedwcm", "fedwcm+", "fedcm+", "fedavg+")
    return [(vectors, arms, seeds), ((IMAGES,), few, seeds)]
