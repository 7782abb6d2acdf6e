"""What holds where TenSEAL is not installed, and how its absence is said."""

import importlib
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from fedwcm.privacy import MAX_CONTRIBUTORS, Client, Server, sum_counts
from fedwcm.privacy.bfv import tenseal

THREE = [[1, 2], [3, 4], [5, 6]]


@pytest.fixture(autouse=True)
def _forget_the_library() -> Iterator[None]:
    tenseal.cache_clear()
    yield
    tenseal.cache_clear()


def test_a_missing_library_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(ImportError, match=r"pip install 'fedwcm\[he\]'") as raised:
        sum_counts(THREE)
    assert "\n" not in str(raised.value)


def test_a_library_that_fails_to_load_says_why_and_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("libgomp.so.1: cannot open")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ImportError, match=r"libgomp.so.1: cannot open.*pip install 'fedwcm\[he\]'"):
        sum_counts(THREE)


def test_fewer_clients_than_a_sum_needs_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match=r"at least 3 clients, not 2: a sum of fewer than min_contributors=3"):
        sum_counts(THREE[:2])
    with pytest.raises(ValueError, match=r"key_holders=2 needs at least 6 clients, not 5"):
        sum_counts(np.ones((5, 2), dtype=int), key_holders=2)


def test_more_contributors_than_a_key_holder_can_sum_is_an_error() -> None:
    names = [str(k) for k in range(MAX_CONTRIBUTORS + 1)]
    Server(names[:-1], 10)
    Server(names, 10, key_holders=2)
    with pytest.raises(ValueError, match=r"key_holders must be at least 2 for 16,385 clients"):
        Server(names, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_holders": 0}, "key_holders = 0 is not allowed: it must be at least 1"),
        ({"min_contributors": 1}, "min_contributors = 1 is not allowed: it must be from 2 to 16,384"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sum_counts(THREE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 2, 3], "clients × classes"),
        ({"a": [1], "b": [1, 2], "c": [1]}, "same classes"),
        ({"a": [1], "b": [-1], "c": [1]}, "whole numbers"),
        ({}, "same classes"),
    ],
)
def test_counts_of_a_wrong_form_are_named(counts: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sum_counts(counts)  # type: ignore[arg-type]


def test_two_clients_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        Server(["a", "a", "b"], 2)


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_name_that_fits_in_no_message_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="it must be 1 to 256 bytes long"):
        Client(name, [1])
