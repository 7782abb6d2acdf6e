"""Facts that are collected once, before round 1: the class distribution, and the method's client statistics.

They are kept in the run's folder: a restarted server reads them instead of asking the clients again. Above all,
classes are counted only once, even if the run then fails before its first round: the difference of two sums that
differ by one client is what that client has.
"""

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from flwr.app import RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.disclosure import as_counts, contributions, decode_total
from fedwcm.core.method import ClientStatistics
from fedwcm.core.types import Fault, Floats, Ints, LeftOut, Population, Report
from fedwcm.experiment.class_distribution import population_of
from fedwcm.experiment.files import write_json
from fedwcm.experiment.folder import RunFolder
from fedwcm.flower.app.options import AppOptions
from fedwcm.flower.records import population_record, to_bytes_record
from fedwcm.flower.server.answers import GROWTH, with_tolerance
from fedwcm.flower.server.directory import MOST_SAMPLES, ClientDirectory, usual_of_others
from fedwcm.flower.untrusted import (
    UnusableError,
    read_float,
    read_int,
    read_list,
    read_record,
    require_names,
    short_repr,
)
from fedwcm.privacy import Receive, Server
from fedwcm.privacy.groups import Disclosed
from fedwcm.privacy.options import PrivacyOptions, noise_bound
from fedwcm.privacy.wire import ProtocolError

NOT_ASKED = "it was not connected when the counting of classes began"
"""Why a client that nobody asked was not counted."""


@dataclass(frozen=True, eq=False)
class FederationSetup:
    """The federation before round 1, and the name under which clients keep the state of this run."""

    run_id: str
    clients: int
    mean_samples: float
    totals: Ints
    deviation: float
    """The mean distance of the clients' class distributions from the target."""
    first_samples: dict[int, int]
    """The number of samples that each client first reported."""
    not_counted: dict[int, str]
    """The clients whose classes were not counted, with the reason."""
    counted_with: dict[str, object]
    """The options that decide what is counted."""
    reported: dict[int, dict[str, float]] = field(default_factory=dict)
    """What the method asked of each client that answered, by ascending number."""
    assumed: Sequence[float] | None = None
    """The class distribution that the trained model will presuppose, where clients have shown their counts."""

    def population(self, config: Config) -> Population:
        """Return the public facts about the federation."""
        return population_of(config, self.totals, self.deviation, self.clients, self.mean_samples)

    def require_counted_with(self, config: Config) -> None:
        """Raise if other options need other counts: the clients would have to be asked again."""
        wanted, had = _counted_with(config), self.counted_with
        changed = [f"{key}: {had[key]} is now {wanted[key]}" for key in wanted if had[key] != wanted[key]]
        if changed:
            raise ValueError(
                f"the classes were counted with other options ({'; '.join(changed)}): "
                "use the former ones, or another flower.out"
            )

    @property
    def statistics(self) -> Report:
        """What the method asked of the clients, a row for each that answered."""
        reports = list(self.reported.values())
        return {key: np.array([own[key] for own in reports]) for key in (reports[0] if reports else ())}

    @property
    def counted(self) -> list[int]:
        """The clients whose classes were counted."""
        return [client for client in self.first_samples if client not in self.not_counted]

    def require_enough(self, needed: int) -> None:
        """Raise if fewer clients than this were counted."""
        if len(self.counted) < needed:
            raise RuntimeError(
                f"{len(self.counted)} clients were counted, flower.min_clients = {needed} are needed"
            )

    def write(self, folder: RunFolder | None) -> None:
        """Write `federation.json` into a run's folder, if there is one."""
        if folder is not None:
            write_json(folder.federation_file, {**vars(self), "totals": self.totals.tolist()})

    @classmethod
    def read(cls, folder: Path) -> "FederationSetup":
        """Read `federation.json` from a run's folder."""
        facts = json.loads(RunFolder(folder).federation_file.read_text(encoding="utf-8"))
        by_client = {
            name: {int(client): value for client, value in facts[name].items()}
            for name in ("first_samples", "not_counted", "reported")
        }
        return cls(**{**facts, **by_client, "totals": np.array(facts["totals"])})


def count_into_setup(directory: ClientDirectory, options: AppOptions) -> FederationSetup:
    """Count the classes of all connected clients; those that do not answer are left out."""
    assert directory.info is not None, "clients are asked after they have sent their info"
    counted = count_classes(directory, directory.info.classes, options)
    if not counted.clients:
        raise RuntimeError("no client counted its samples")
    totals, deviation = decode_total(
        counted.total, len(counted.clients), noise_bound(options.config.privacy.epsilon)
    )
    first_samples = dict(sorted(directory.first_samples.items()))
    unasked = {c: NOT_ASKED for c in first_samples if c not in counted.clients and c not in counted.left_out}
    return FederationSetup(
        run_id=uuid.uuid4().hex[:16],
        clients=len(directory.samples),
        mean_samples=plausible_mean(directory.samples[counted.clients]),
        totals=totals,
        deviation=deviation,
        first_samples=first_samples,
        not_counted={**{c: str(why) for c, why in counted.left_out.items()}, **unasked},
        counted_with=_counted_with(options.config),
    )


def plausible_mean(samples: Ints) -> float:
    """Return the mean number of samples, of which none counts as more than ten times the median of the others."""
    sizes = samples.astype(np.float64)
    return float(np.minimum(sizes, MOST_SAMPLES * usual_of_others(sizes) if len(sizes) > 1 else sizes).mean())


def with_statistics(
    setup: FederationSetup, directory: ClientDirectory, options: AppOptions, method: ClientStatistics
) -> FederationSetup:
    """Ask the clients that were counted for what the method wants to know about them."""
    reports = _ask_statistics(directory, setup.counted, method, setup.population(options.config))
    needed = options.federation.min_clients
    if len(reports) < needed:
        raise RuntimeError(
            f"{len(reports)} clients reported their statistics, flower.min_clients = {needed} are needed"
        )
    return replace(setup, reported=reports)


def _ask_statistics(
    directory: ClientDirectory, clients: list[int], method: ClientStatistics, population: Population
) -> dict[int, dict[str, float]]:
    """Return what the method asks of every client, for each that answered, by ascending number.

    Where the server has seen a client's counts, it believes only what follows from them.
    """
    reports: dict[int, dict[str, float]] = {}
    for client, counts in directory.counts.items():
        exact = method.client_statistics(as_counts(counts[None]), population)
        directory.statistics[client] = {key: float(values[0]) for key, values in exact.items()}

    def receive(client: int, content: RecordDict) -> None:
        values, allowed = read_record(content, "statistics"), method.statistics_range(population)
        if client in directory.statistics:
            allowed = {key: (value, value) for key, value in directory.statistics[client].items()}
        require_names("statistics", values, allowed)
        reports[client] = {key: read_float(values, key, *with_tolerance(*allowed[key])) for key in allowed}

    question = RecordDict({"population": population_record(population)})
    directory.ask("query.statistics", dict.fromkeys(clients, question), receive)
    return {client: reports[client] for client in sorted(reports)}


def _counted_with(config: Config) -> dict[str, object]:
    target = config.run.target_shares
    return {
        "privacy.mode": config.privacy.mode,
        "privacy.epsilon": config.privacy.epsilon,
        "privacy.score_levels": config.privacy.levels,
        "run.target": None if target is None else target.tolist(),
    }


LOG = logging.getLogger("flwr.fedwcm")


@dataclass(frozen=True, eq=False)
class CountedClasses:
    """The sum, the clients that are in it, and the others with the reason."""

    clients: list[int]
    total: Ints
    left_out: dict[int, LeftOut]


def count_classes(directory: ClientDirectory, classes: int, options: AppOptions) -> CountedClasses:
    """Sum the counts of all known clients in the way that the run asks for."""
    config, out = options.config, options.federation.out
    if config.privacy.mode == "he":
        exact = config.privacy.epsilon is None
        if exact and not out:
            LOG.warning(
                "without flower.out nobody remembers whose counts were summed: two sums may show one client"
            )
        memory = Path(out).parent / "gatherings.json" if exact and out else None
        return _encrypted_counting(directory, classes, config.privacy, memory)
    return _plain_counting(directory, classes, config.privacy.epsilon, config.run.target_shares)


def _plain_counting(
    directory: ClientDirectory, classes: int, epsilon: float | None, target: Floats | None
) -> CountedClasses:
    """Let every client send its counts to the server, which adds them and writes none down."""
    rows = directory.counts

    def receive(client: int, content: RecordDict) -> None:
        rows[client] = _read_counts(content, classes, int(directory.samples[client]), epsilon)

    left_out = directory.ask("query.counts", dict.fromkeys(directory.known, RecordDict()), receive)
    shift = noise_bound(epsilon)
    added = (contributions(row[None], target, None, shift)[0] for row in rows.values())
    total = sum(added, np.zeros(classes + 1, dtype=np.int64))
    return CountedClasses(sorted(rows), total, left_out)


def _read_counts(content: RecordDict, classes: int, samples: int, epsilon: float | None) -> Ints:
    """Return one client's counts, one for each class; without noise they must add up to its number of samples."""
    listed = read_list(read_record(content, "counts"), "counts")
    if len(listed) != classes:
        raise UnusableError(f"it counts {len(listed)} classes, the model has {classes}")
    noise = noise_bound(epsilon)
    counts: Ints = np.array([read_int({"counts": n}, "counts", -noise, samples + noise) for n in listed])
    if epsilon is None and counts.sum() != samples:
        raise UnusableError(f"its counts {short_repr(listed)} add up to {counts.sum()}, it has {samples} samples")
    return counts


def _encrypted_counting(
    directory: ClientDirectory, classes: int, privacy: PrivacyOptions, memory: Path | None
) -> CountedClasses:
    """Add up encrypted counts, and have one of the clients decrypt the sum: see `fedwcm.privacy`.

    The file `memory` holds the clients of all encrypted sums of the runs in one folder, in parts: two sums that
    differ by a few clients show what these have.
    """
    parts = json.loads(memory.read_text(encoding="utf-8")) if memory is not None and memory.exists() else []
    reasons: dict[str, LeftOut] = {}

    def transport(requests: Mapping[str, bytes], receive: Receive) -> None:
        contents = {int(name): to_bytes_record(data) for name, data in requests.items()}
        missing = directory.ask("query.encrypted", contents, lambda k, reply: receive(str(k), _unwrap(reply)))
        for client, reason in missing.items():
            reasons.setdefault(str(client), reason)  # the first reason: late clients are not asked again

    names = tuple(map(str, directory.known))

    def check(contributors: Sequence[str], totals: Ints) -> None:
        samples = int(directory.samples[[int(name) for name in contributors]].sum())
        noise = len(contributors) * classes * noise_bound(privacy.epsilon)
        _require_plausible(int(totals[:-1].sum()) - noise, samples, noise)

    server = Server(
        names,
        classes + 1,
        key_holders=privacy.key_holders,
        min_contributors=privacy.min_contributors,
        check_totals=check,
        confirmations=2,
        disclosed=Disclosed(tuple(map(frozenset, parts))),
    )
    try:
        result = server.run(transport)
    finally:
        if memory is not None:
            write_json(memory, [sorted(part, key=int) for part in server.disclosed.parts])
    for holder in server.unconfirmed:
        LOG.warning(
            "query.encrypted: nobody else has decrypted the totals of client %s: they may be wrong", holder
        )
    for refused in result.refused:
        reasons[refused.sender] = why = LeftOut(Fault.REFUSED, refused.reason)
        LOG.warning("query.encrypted: a reply of client %s is not used: %s", refused.sender, why)
    nowhere = LeftOut(Fault.REFUSED, "its counts are not in any sum")
    left_out = {int(name): reasons.get(name, nowhere) for name in result.left_out}
    return CountedClasses([int(name) for name in result.contributors], result.totals, left_out)


def _require_plausible(counted: int, samples: int, noise: int) -> None:
    """Refuse a sum of counts, with up to this much noise, if clients with this many samples cannot have it.

    Clients may have added or removed samples since they sent their info, within the usual bounds: under
    encryption the counts of one client cannot be refused without losing the sum of all.
    """
    least, most = samples // GROWTH - noise, samples * GROWTH + noise
    if not least <= counted <= most:
        raise ProtocolError(
            f"totals of {counted:,} samples cannot be true: "
            f"their clients have {samples:,}, so {least:,} to {most:,} are possible"
        )


def _unwrap(content: RecordDict) -> bytes:
    """Return one client's message of the encrypted protocol."""
    data = read_record(content, "encrypted").get("data")
    if not isinstance(data, bytes):
        raise UnusableError(f"its encrypted message is {short_repr(data)}: it must be bytes")
    return data
