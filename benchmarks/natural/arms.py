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

TRIED = ("fedavg", *CANDIDATES)
"""What `--method auto` of the package tries."""

RACE = {arm: f"{arm}, 20 rounds" for arm in TRIED}
ARMS |= {short: {**ARMS[arm], "run.rounds": 20, "run.eval_every": 20} for arm, short in RACE.items()}
"""What `--method auto[share=0.25]` looks at: a quarter of the rounds."""

OWN = "benchmarks.natural.leads:"
LEADS: dict[str, Settings] = {
    "fedwcm N": {**method("fedwcm"), **NORMALIZED},
    "fedavg N rows": {**method(f"{OWN}RowsByClass"), **NORMALIZED},
    "fedavg N absent": {**method("fedavg"), **NORMALIZED, "loss.name": f"{OWN}AbsentShifted"},
    "fedavg N SAM": {**method("fedsam"), **NORMALIZED},
    "fedwcm H N SAM": {**method("mofedsam+wcm", **FOLLOWING), **NORMALIZED},
    "fedwcm-x H N warm": {**method(f"{OWN}WarmStart", rate_limit=1.0, **FOLLOWING), **NORMALIZED},
    **{f"fedwcm-x H N scale {scale:g}": {**ARMS["fedwcm-x H N"], "loss.scale": scale} for scale in (5.0, 20.0)},
}

ARMS |= LEADS

COMPARED: dict[str, list[tuple[str, str]]] = {
    "α from H": [("fedwcm H", "fedwcm"), ("fedwcm-x H", "fedwcm-x"), ("fedwcm H N", "fedwcm N")],
    "weights by size": [("fedwcm-x", "fedwcm"), ("fedwcm-x H N", "fedwcm H N"), ("fedwcm-x H +", "fedwcm H +")],
    "the client's own prior": [("fedavg own P", "fedavg P")],
    "half the correction": [("fedavg N half", "fedavg+"), ("fedwcm-x H N half", "fedwcm-x H +")],
    "at most 3 repetitions": [("fedavg N cap 3", "fedavg+"), ("fedwcm-x H N cap 3", "fedwcm-x H +")],
    "at most 10 repetitions": [("fedavg N cap 10", "fedavg+"), ("fedwcm-x H N cap 10", "fedwcm-x H +")],
    "no oversampling": [("fedavg N", "fedavg+"), ("fedwcm-x H N", "fedwcm-x H +")],
    "warm start": [("fedwcm-x H N warm", "fedwcm-x H N")],
    "scale 5": [("fedwcm-x H N scale 5", "fedwcm-x H N")],
    "scale 20": [("fedwcm-x H N scale 20", "fedwcm-x H N")],
    "rows by n_kc": [("fedavg N rows", "fedavg N")],
    "absent classes −1": [("fedavg N absent", "fedavg N")],
    "SAM": [("fedavg N SAM", "fedavg N"), ("fedwcm H N SAM", "fedwcm H N")],
}
"""Ideas, each as arms beside arms that lack it."""

JUDGED = (
    *("fedavg", "fedwcm", "fedwcm-x", "fedavg P", "fedavg N", "fedwcm H N", "fedwcm-x H N cap 10", "fedcm+"),
    *CANDIDATES,
)
