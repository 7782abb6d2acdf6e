"""Durations read as people say them."""

from fedwcm.utils.text import duration, rough_duration


def test_to_the_second_or_to_the_minute() -> None:
    assert [duration(s) for s in (0.2, 59, 200, 7500)] == ["0 s", "59 s", "3 min 20 s", "2 h 05 min"]


def test_two_digits_of_the_largest_unit_that_there_are_two_of() -> None:
    seconds = (0.0, 0.347, 5, 9.97, 119, 150, 9000, 200_000, None)
    texts = ["0 s", "0.35 s", "5 s", "10 s", "119 s", "2.5 min", "2.5 h", "2.3 days", "unknown"]
    assert [rough_duration(each) for each in seconds] == texts
