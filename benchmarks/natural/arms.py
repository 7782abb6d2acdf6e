"""What is compared, as dotted options. Every arm is also measured with its class distribution corrected."""

Settings = dict[str, object]

COMMON: Settings = {
    "model.name": "mlp",
    "model.hidden": [100],
    "local.epochs": 1,
    "local.lr": 0.1,
    "local.batch_size": 50,
    "local.clip": 10.0,
    "participation.fraction": 0.5,
    "run.rounds": 80,
    "run.eval_every": 80,
    "run.workers": 1,
}
AVERAGE: Settings = {"server.ema": 0.9}
PRIOR: Settings = {"loss.name": "prior_ce", "loss.prior": "global", **AVERAGE}
NORMALIZED: Settings = {**PRIOR, "loss.normalize": True, "loss.scale": 10.0}
OWN_PRIOR: Settings = {**PRIOR, "loss.prior": "client"}
BALANCED: Settings = {"sampler.name": "balanced"}


def method(name: str, **options: object) -> Settings:
    """Return the settings of a method."""
    return {"method.name": name, **{f"method.{key}": value for key, value in options.items()}}


FOLLOWING = {"alpha_rule": "heterogeneity"}
ARMS: dict[str, Settings] = {
    "fedavg": {**method("fedavg"), **AVERAGE},
    "fedcm": {**method("fedcm"), **AVERAGE},
    "fedwcm": {**method("fedwcm"), **AVERAGE},
    "fedwcm-x": {**method("fedwcm-x", rate_limit=1.0), **AVERAGE},
    "fedwcm H": {**method("fedwcm", **FOLLOWING), **AVERAGE},
    "fedwcm-x H": {**method("fedwcm-x", rate_limit=1.0, **FOLLOWING), **AVERAGE},
    "fedavg P": {**method("fedavg"), **PRIOR},
    "fedavg own P": {**method("fedavg"), **OWN_PRIOR},
    "fedwcm H P": {**method("fedwcm", **FOLLOWING), **PRIOR},
    "fedwcm-x H P": {**method("fedwcm-x", rate_limit=1.0, **FOLLOWING), **PRIOR},
    "fedwcm .1 P": {**method("fedwcm", adaptive=False), **PRIOR},
    "fedavg N": {**method("fedavg"), **NORMALIZED},
    "fedcm N": {**method("fedcm"), **NORMALIZED},
    "fedwcm H N": {**method("fedwcm", **FOLLOWING), **NORMALIZED},
    "fedwcm-x H N": {**method("fedwcm-x", rate_limit=1.0, **FOLLOWING), **NORMALIZED},
    "fedwcm .1 N": {**method("fedwcm", adaptive=False), **NORMALIZED},
    "fedavg+": {**method("fedavg"), **NORMALIZED, **BALANCED},
    "fedcm+": {**method("fedcm"), **NORMALIZED, **BALANCED},
    "fedwcm+": {**method("fedwcm", adaptive=False), **NORMALIZED, **BALANCED},
    "fedwcm H +": {**method("fedwcm", **FOLLOWING), **NORMALIZED, **BALANCED},
    **{
        f"{name} N cap {cap:g}": {**settings, **NORMALIZED, **BALANCED, "sampler.cap": cap}
        for name, settings in (
            ("fedavg", method("fedavg")),
            ("fedwcm-x H", method("fedwcm-x", rate_limit=1.0, **FOLLOWING)),
        )
        for cap in (3.0, 10.0)
    },
    **{
        f"{name} N half": {**settings, **NORMALIZED, **BALANCED, "loss.tau": 0.5}
        for name, settings in (
            ("fedavg", method("fedavg")),
            ("fedwcm-x H", method("fedwcm-x", rate_limit=1.0, **FOLLOWING)),
        )
    },
    "fedwcm-x H +": {**method("fedwcm-x", rate_limit=1.0, **FOLLOWING), **NORMALIZED, **BALANCED},
}
CANDIDATES = ("fedavg+", "fedwcm+", "fedwcm-x H N", "fedwcm-x H N half")
"""Of these, `auto` takes the one with the highest balanced accuracy on validation data."""

RACE = {arm: f"{arm}, 20 rounds" for arm in CANDIDATES}
ARMS |= {short: {**ARMS[arm], "run.rounds": 20, "run.eval_every": 20} for arm, short in RACE.items()}
"""What `--method auto` looks at: a quarter of the rounds."""

JUDGED = (
    *("fedavg", "fedwcm", "fedwcm-x", "fedavg P", "fedavg N", "fedwcm H N", "fedwcm-x H N cap 10", "fedcm+"),
    *CANDIDATES,
)
