"""What a configuration cannot record of an object of one's own is refused."""

from functools import cached_property
from typing import Any

import numpy as np
import pytest

from fedwcm.api.description import describe_objects

from .objects import Backwards, Margin


class Weighted(Margin):
    """A loss whose weight is no field."""

    def __init__(self, w: float) -> None:
        super().__init__(width=2.0)
        self.w = w


class Every(Backwards):
    """A sampler that is no dataclass, with an attribute."""

    def __init__(self, n: int) -> None:
        self.n = n


class Cut:
    """A partition with an attribute."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, labels: Any, rng: np.random.Generator) -> Any:
        return [np.arange(self.at), np.arange(self.at, len(labels))]


@pytest.mark.parametrize(
    ("given", "attribute"),
    [({"loss": Weighted(1.0)}, "w"), ({"sampler": Every(2)}, "n"), ({"partition": Cut(9)}, "at")],
)
def test_attributes_that_no_folder_would_record_are_refused(given: dict[str, Any], attribute: str) -> None:
    with pytest.raises(ValueError, match=rf"no run records, {attribute}: make it a frozen dataclass"):
        describe_objects(given)


def test_a_cached_property_is_no_attribute_of_ones_own() -> None:
    class Caching(Margin):
        @cached_property
        def double(self) -> float:
            return 2 * self.width

    loss = Caching(width=3.0)
    assert loss.double == 6.0
    assert describe_objects({"loss": loss})["loss"].options == {"width": 3.0}
