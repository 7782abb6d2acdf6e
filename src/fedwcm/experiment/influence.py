"""Who was left out of rounds and why, how much each client counted, the bound in force, accuracies: in words."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from fedwcm.core.checks import shorten
from fedwcm.experiment.records import RoundRecord

LISTED = 5
"""Clients that are listed with their reasons, those that were left out most often."""


def describe_influence(history: Sequence[RoundRecord], settings: Mapping[str, object]) -> list[str]:
    """Return a sentence for each client that was left out, the largest shares, the bound on norms, accuracies."""
    sentences = _left_out(history)
    bounds = [record for record in history if "max_norm" in record.extra]
    if sentences or bounds or settings.get("aggregation.max_share") is not None:
        sentences += _shares(history)
    if bounds:
        clipped = sum(int(record.number("clipped_clients") or 0) for record in bounds)
        last = bounds[-1].number("max_norm") or 0.0
        where = f"The bound on the norm of an increment was {last:.3g} in round {bounds[-1].round}"
        sentences.append(f"{where}; {clipped} increments were scaled down to it in {len(bounds)} rounds.")
    tested = [record for record in history if client_accuracies(record)]
    if tested:
        accuracies = client_accuracies(tested[-1])
        listed = ", ".join(f"{client} ({value:.3f})" for client, value in list(accuracies.items())[:LISTED])
        intro = f"Clients said in round {tested[-1].round} how the model does on their own data"
        middle = median(accuracies.values())
        sentences.append(
            f"{intro}: the median accuracy of {len(accuracies)} is {middle:.3f}, lowest are {listed}."
        )
    return sentences


def client_accuracies(record: RoundRecord) -> dict[str, float]:
    """Return the accuracy that each client of a real federation reported on its own data, the lowest first."""
    accuracies = record.extra.get("per_client")
    metrics = accuracies.items() if isinstance(accuracies, dict) else ()
    pairs = [(client, own["accuracy"]) for client, own in metrics if isinstance(own, dict) and "accuracy" in own]
    numbers = {client: float(value) for client, value in pairs if isinstance(value, int | float)}
    return dict(sorted(numbers.items(), key=lambda pair: pair[1]))


def left_out_counts(history: Sequence[RoundRecord]) -> Counter[str]:
    """Return how many recorded rounds went on without each client."""
    return Counter(client for record in history for client in record.left_out or ())


def _left_out(history: Sequence[RoundRecord]) -> list[str]:
    counts = left_out_counts(history)
    reasons = {client: reason for record in history for client, reason in (record.left_out or {}).items()}
    sentences = [
        f"Client {client} was left out of {count} of {len(history)} rounds; last reason: {reasons[client]}."
        for client, count in counts.most_common(LISTED)
    ]
    rest = [client for client, _ in counts.most_common()[LISTED:]]
    return [*sentences, f"Also left out: {shorten(rest)}."] if rest else sentences


def _shares(history: Sequence[RoundRecord]) -> list[str]:
    """Return who had the largest share of the weight, over the rounds that it took part in."""
    shares: dict[int, list[float]] = defaultdict(list)
    for record in history:
        total = sum(record.weights or ())
        for client, weight in zip(record.clients or (), record.weights or (), strict=False):
            shares[client].append(weight / total if total else 0.0)
    if not shares:
        return []
    means = {client: sum(values) / len(values) for client, values in shares.items()}
    first = max(means, key=means.__getitem__)
    most = max(max(values) for values in shares.values())
    who = f"Client {first} had the largest share of a round's weight, {means[first]:.2f} on average"
    return [f"{who}; no share was above {most:.2f}."]
