"""A node's own rules: what the server's options say is not enough if they protect it less."""

from typing import Any

import pytest

from fedwcm.flower.client.privacy import require_private_enough
from fedwcm.privacy.options import PrivacyOptions

from .federation import finish, grid

HE: dict[str, Any] = {"mode": "he"}


@pytest.mark.parametrize(
    ("demands", "options"),
    [
        ({}, {}),
        ({"privacy": "none"}, {}),
        ({"privacy": "he"}, HE),
        ({"min-contributors": 3}, HE),
        ({"min-contributors": 3}, {**HE, "min_contributors": 4}),
        ({"score-levels": 8}, HE),
        ({"epsilon": 1.0}, {"epsilon": 1.0}),
        ({"epsilon": 1, "privacy": "he"}, {**HE, "epsilon": 0.5}),
    ],
)
def test_a_run_that_protects_as_much_as_the_node_demands_is_served(
    demands: dict[str, Any], options: dict[str, Any]
) -> None:
    require_private_enough(PrivacyOptions(**options), demands)


@pytest.mark.parametrize(
    ("demands", "options", "words"),
    [
        ({"privacy": "he"}, {}, "this node demands privacy = 'he': the run has privacy.mode = 'none'"),
        ({"min-contributors": 5}, HE, "min-contributors = 5: the run has privacy.min_contributors = 3"),
        ({"min-contributors": 2}, {}, "privacy.min_contributors = 3 and privacy.mode = 'none'"),
        ({"score-levels": 4}, HE, "score-levels = 4: the run has privacy.score_levels = 8"),
        ({"score-levels": 4}, {**HE, "score_levels": 0}, "privacy.score_levels = 0"),
        ({"epsilon": 1.0}, {}, "epsilon = 1.0: the run has privacy.epsilon = None"),
        ({"epsilon": 1.0}, {"epsilon": 2.0}, "epsilon = 1.0: the run has privacy.epsilon = 2.0"),
        ({"privacy": "HE"}, HE, "privacy = 'HE' is not allowed: it must be 'none' or 'he'"),
        ({"min-contributors": "5"}, HE, "min-contributors = '5' is not allowed"),
        ({"score-levels": 0}, HE, "score-levels = 0 is not allowed"),
        ({"epsilon": "small"}, HE, "epsilon = 'small' is not allowed"),
    ],
)
def test_a_run_that_protects_less_is_refused_with_both_values(
    demands: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        require_private_enough(PrivacyOptions(**options), demands)


def test_a_node_says_nothing_to_a_run_that_protects_it_less(caplog: pytest.LogCaptureFixture) -> None:
    nodes = grid("fedwcm", node={"privacy": "he"})
    with pytest.raises(RuntimeError, match="0 clients connected"):
        finish(nodes)
    assert nodes.kinds() == {"query.info"}
    assert any("this node demands privacy = 'he'" in message for message in caplog.messages)
