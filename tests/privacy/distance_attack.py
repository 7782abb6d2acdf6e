"""An attack on the sum of distances: which class counts could the clients have, whose sum this is?

The attacker is the server. It knows every client's number of samples, the class totals and the sum of the clients'
distances from the target, for two classes, and tries every way in which the totals may be divided.

`python -m tests.privacy.distance_attack` prints how many possibilities are left, by levels of the distance.
"""

import numpy as np

from fedwcm.core.disclosure import contributions
from fedwcm.core.types import Ints

FEDERATIONS = 40


def federations(clients: int, least: int, most: int) -> list[Ints]:
    """Federations of clients with so many samples and two classes, in shares of their own."""
    rng = np.random.default_rng(0)

    def counts() -> Ints:
        sizes = rng.integers(least, most, clients)
        second = rng.binomial(sizes, rng.beta(0.7, 0.7, clients))
        return np.column_stack([sizes - second, second])

    return [counts() for _ in range(FEDERATIONS)]


def fitting_tables(total: Ints, sizes: Ints, levels: int | None) -> Ints:
    """All samples of the second class, one row each for all clients, that give this sum of contributions."""
    *others, last = (contributions(_every_split(int(n)), None, levels)[:, -1] for n in sizes)
    guesses = np.meshgrid(*(np.arange(n + 1) for n in sizes[:-1]), indexing="ij")
    rest = total[1] - sum(guesses)
    distance = sum(own[guess] for own, guess in zip(others, guesses, strict=True))
    distance = distance + last[np.clip(rest, 0, sizes[-1])]
    fits = (rest >= 0) & (rest <= sizes[-1]) & (distance == total[-1])
    return np.column_stack([*(guess[fits] for guess in guesses), rest[fits]])


def attack(counts: Ints, levels: int | None) -> Ints:
    """What fits the sum of what clients with these counts add."""
    return fitting_tables(contributions(counts, None, levels).sum(axis=0), counts.sum(axis=1), levels)


def _every_split(samples: int) -> Ints:
    second = np.arange(samples + 1)
    return np.column_stack([samples - second, second])


def print_possibilities() -> None:
    """For several federations and levels: the divisions of the totals that fit, least and median."""
    for clients, least, most in ((3, 20, 40), (3, 50, 150), (4, 60, 120), (5, 20, 40)):
        for levels in (None, 16, 8, 4, 1):
            left = [len(attack(counts, levels)) for counts in federations(clients, least, most)]
            what = f"{clients} clients of {least} to {most - 1} samples, levels {levels or 'exact'}"
            one = f"one possibility in {left.count(1)} of {FEDERATIONS}"
            print(f"{what}: {one}, least {min(left)}, median {np.median(left):g}")


if __name__ == "__main__":
    print_possibilities()
