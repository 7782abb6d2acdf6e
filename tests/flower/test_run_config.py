"""Flower's run-config has our options under our names; what is wrong is said by name."""

from contextlib import nullcontext

import pytest
from flwr.common.config import flatten_dict, parse_config_args

from fedwcm.config.settings import from_settings, to_settings
from fedwcm.flower.app.options import read


def test_what_is_not_given_has_our_defaults_with_bounds_for_clients_that_lie() -> None:
    bounded = {"run.checkpoint_every": 1, "aggregation.max_share": 0.2, "aggregation.norm_ratio": 2.0}
    assert read({}).config == from_settings(bounded)
    for unusable in ({"method.name": "scaffold"}, {"method.name": "mime"}, {"flower.secure_aggregation": True}):
        aggregation = read(unusable).config.aggregation
        assert (aggregation.max_share, aggregation.norm_ratio) == (0.2, None)
    assert read({"aggregation.norm_ratio": "none"}).config.aggregation.norm_ratio is None


def test_tables_and_dotted_overrides_of_flower_are_our_options() -> None:
    tables = flatten_dict(
        {"method": {"name": "fedcm", "alpha": 0.2}, "local": {"lr": 0.3}, "flower": {"clients": 3}}
    )
    overrides = parse_config_args(["local.lr=0.5 loss.name='focal' run.rounds=7"])
    options = read({**tables, **overrides})
    expected = {
        "method.name": "fedcm",
        "method.alpha": 0.2,
        "local.lr": 0.5,
        "loss.name": "focal",
        "run.rounds": 7,
    }
    assert expected.items() <= to_settings(options.config).items()
    assert options.federation.clients == 3


def test_options_in_brackets_reach_what_flower_s_config_cannot_hold() -> None:
    config = read({"method.name": "fedwcm[run.target=[0.5, 0.5], local.clip=3.0]"}).config
    assert config.method.name == "fedwcm"
    assert config.run.target == (0.5, 0.5)
    assert config.local.clip == 3.0


def test_a_recipe_wins_over_the_parts_that_an_app_lists() -> None:
    config = read({"method.name": "balancefl", "loss.name": "cross_entropy", "sampler.name": "uniform"}).config
    assert (config.method.name, config.loss.name, config.sampler.name) == ("fedavg", "balancefl", "balanced")
    assert config.title == "balancefl"


def test_options_of_the_method_stand_beside_its_name() -> None:
    assert read({"method.name": "fedcm", "method.alpha": 0.4}).config.method.options == {"alpha": 0.4}


def test_how_images_are_cropped_is_part_of_training() -> None:
    data = read({"data.augment": True, "data.crop_padding": 2}).config.data
    assert (data.augment, data.crop_padding) == (True, 2)


def test_the_server_s_own_diagnostics_are_possible() -> None:
    assert read({"run.diagnostics": "concentration"}).config.run.diagnostics == ("concentration",)


def test_keys_of_the_app_s_own_are_left_alone() -> None:
    assert read({"app.data-path": "/data"}) == read({})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("flower.min_clients", 0, r"min_clients = 0 is not allowed: it must be at least 1"),
        ("flower.timeout", 0.0, r"timeout = 0.0"),
        (
            "flower.secure_range",
            float("inf"),
            r"secure_range = inf is not allowed: it must be in",
        ),
        ("flower.secure_range", 1e308, r"secure_range = 1e\+308 is not allowed"),
        ("flower.secure_range", float("nan"), r"secure_range = nan is not allowed"),
        ("flower.out", "run1", r"out = 'run1' is not allowed: it must be an absolute path, or empty"),
        ("privacy.mode", "rsa", r"privacy.mode"),
        ("flower.client", 3, r"unknown option 'flower.client'. Did you mean 'flower.clients'"),
        ("locl.lr", 0.1, r"unknown section of the run-config: 'locl'. Did you mean 'local'"),
        ("lr", 0.1, r"unknown section of the run-config: 'lr'"),
        ("local.lr", "fast", r"local.lr = 'fast' is not allowed: it must be a number"),
        ("local.rate", 0.1, r"unknown option 'local.rate'"),
        (
            "data.dataset",
            "digits",
            r"data.dataset is not an option on Flower: the data function of the app decides",
        ),
        (
            "run.checkpoint_every",
            2,
            r"checkpoint_every = 2 is not allowed: it must be 1 on Flower: clients keep the s",
        ),
        ("method.name", "scaffold[run.checkpoint_every=5]", r"run.checkpoint_every = 5 is not allowed"),
        (
            "run.backend",
            "parallel",
            r"run.backend = 'parallel' is not allowed: it must be 'auto' on Flower: clients",
        ),
        ("run.workers", 2, r"run.workers = 2 is not allowed"),
        ("run.patience", 3, r"run.patience = 3 is not allowed: it must be 0 on Flower: the server holds no valid"),
        ("run.select_by", "accuracy", r"run.select_by = 'accuracy' is not allowed"),
        ("run.reject_nonfinite", False, r"run.reject_nonfinite = False is not allowed: it must be True on Flower"),
        ("run.diagnostics", "train_set", r"run.diagnostics = 'train_set' is not allowed"),
        ("run.diagnostics", "concentration,clients", r"run.diagnostics = 'clients' is not allowed"),
        ("model.name", "cnn", r"model.name is not an option on Flower: the model function of the app decides"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(key: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read({key: value})


@pytest.mark.parametrize(
    ("clients", "fraction", "sampling", "possible"),
    [(2, 1.0, "fixed", False), (10, 0.2, "fixed", False), (10, 0.3, "fixed", True), (10, 0.2, "bernoulli", True)],
)
def test_secure_aggregation_needs_rounds_of_three_clients(
    clients: int, fraction: float, sampling: str, possible: bool
) -> None:
    asked = {"participation.fraction": fraction, "participation.sampling": sampling, "flower.clients": clients}
    message = rf"flower.secure_aggregation = True .* asks 2 of {clients} clients in a round, a secure sum needs 3"
    expected = nullcontext() if possible else pytest.raises(ValueError, match=message)
    with expected:
        read({**asked, "flower.secure_aggregation": True})
    read(asked)
