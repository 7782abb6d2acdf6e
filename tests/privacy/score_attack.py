"""An attack on reported scores: which class counts could a client have that reports this score?

The attacker is the server. It knows the client's number of samples, the class distribution and the method, and
tries every way in which the samples may be spread over the scarce classes. (How the rest divides among the other
classes has no influence on the score.)

`python -m tests.privacy.score_attack` prints how many possibilities are left, by levels of the score.
"""

import itertools
from dataclasses import replace

import numpy as np

from fedwcm.core.disclosure import SAMPLES_PER_LEVEL, Disclosure
from fedwcm.core.types import Floats, Ints, Population
from fedwcm.methods.fedwcm import FedWCM

CLIENTS = 20


def population_of(counts: Ints) -> Population:
    """What the server knows of a federation with these counts."""
    totals = counts.sum(axis=0)
    return Population(len(counts), len(totals), float(counts.sum(axis=1).mean()), totals / totals.sum(), 1, 1, 10)


def reported(counts: Ints, population: Population, disclosure: Disclosure) -> Floats:
    """The scores that clients with these counts report."""
    return disclosure.report(FedWCM(), np.arange(len(counts)), counts, population)["score"]


def fitting_counts(samples: int, score: float, population: Population, disclosure: Disclosure) -> Ints:
    """All counts of the scarce classes with which a client of this size would report this score."""
    scarce = np.flatnonzero(population.prior < 1 / population.classes)
    rest = int(np.argmax(population.prior))
    spread = itertools.product(range(samples + 1), repeat=len(scarce))
    guesses = np.array([guess for guess in spread if sum(guess) <= samples])
    table = np.zeros((len(guesses), population.classes), dtype=np.int64)
    table[:, scarce] = guesses
    table[:, rest] = samples - guesses.sum(axis=1)
    fits: Ints = guesses[np.abs(reported(table, population, disclosure) - score) < 1e-12]
    return fits


def long_tailed_counts(classes: int) -> Ints:
    """Clients of different sizes with their own mixtures of classes, each half as frequent as the one before."""
    rng = np.random.default_rng(classes)
    frequency = 0.5 ** np.arange(classes)
    sizes = rng.integers(SAMPLES_PER_LEVEL, 40, CLIENTS)
    shares = rng.dirichlet(4 * frequency / frequency.sum(), CLIENTS)
    return np.array([rng.multinomial(n, share) for n, share in zip(sizes, shares, strict=True)])


def attack(counts: Ints, disclosure: Disclosure) -> list[Ints]:
    """For every client the counts of the scarce classes that fit what it reports."""
    population = population_of(counts)
    scores = reported(counts, population, disclosure)
    clients = zip(counts.sum(axis=1), scores, strict=True)
    return [fitting_counts(int(n), float(score), population, disclosure) for n, score in clients]


def possibilities_after(queries: int, classes: int = 3, levels: int = 8) -> list[int]:
    """For every client the counts that fit its scores in levels under class distributions of the server's choice.

    Of some distributions the server takes each time the one that tells apart most of what is left.
    """
    rng, counts = np.random.default_rng(0), long_tailed_counts(classes)
    known, disclosure = population_of(counts), Disclosure(levels)
    left = []
    for own in counts:
        every = itertools.product(range(own.sum() + 1), repeat=classes - 1)
        table = np.array([own, *([*guess, own.sum() - sum(guess)] for guess in every if sum(guess) <= own.sum())])
        for _ in range(queries):
            candidates = [replace(known, prior=prior) for prior in rng.dirichlet(np.ones(classes), 40)]
            possible_scores = [reported(table, population, disclosure).round(9) for population in candidates]
            best = min(possible_scores, key=lambda scores: (np.unique(scores, return_counts=True)[1] ** 2).sum())
            table = table[best == best[0]]
        left.append(len(table) - 1)
    return left


def print_possibilities() -> None:
    """For 2 to 4 classes and several levels: the counts of the scarce classes that fit, least and median."""
    for classes in (2, 3, 4):
        for levels in (None, 32, 16, 8, 4, 2, 1):
            left = [len(fits) for fits in attack(long_tailed_counts(classes), Disclosure(levels))]
            print(f"{classes} classes, levels {levels or 'exact'}: least {min(left)}, median {np.median(left):g}")
    for queries in (1, 3, 9):
        left = possibilities_after(queries)
        found = f"{left.count(1)} of {CLIENTS} clients have one possibility, the median has {np.median(left):g}"
        print(f"3 classes, 8 levels, {queries} class distributions: {found}")


if __name__ == "__main__":
    print_possibilities()
