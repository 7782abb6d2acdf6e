"""Named compositions: a method with options, and what goes with it. `--method` takes these names too."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Settings under one name: dotted options, of which `method.name` is one."""

    description: str
    settings: dict[str, object]


RECIPES: dict[str, Recipe] = {
    "fedcm-nominal": Recipe(
        "FedCM as the paper's rows have it: the momentum divided by E·n/b, a fraction of the steps taken",
        {"method.name": "fedcm", "method.momentum_norm": "nominal"},
    ),
    "fedwcm-literal": Recipe(
        "FedWCM to the letter of Eqs. 3-5 and Algorithm 1, its sign excepted",
        {
            "method.name": "fedwcm",
            "method.score": "absolute",
            "method.alpha_rule": "temperature",
            "method.server_step": "literal",
            "method.temperature_scale": 1.0,
        },
    ),
}
