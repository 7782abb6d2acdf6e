"""Sum what the clients contribute before round 1 (`core/gathering.py`), in plain text or under encryption."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import RecordDict

from fedwcm.config.schema import Config
from fedwcm.core.gathering import contributions
from fedwcm.core.types import Floats, Ints
from fedwcm.flower.answers import GROWTH
from fedwcm.flower.client_directory import ClientDirectory
from fedwcm.flower.records import to_bytes_record
from fedwcm.flower.untrusted import UnusableError, items, shown, whole
from fedwcm.privacy import Receive, Server
from fedwcm.privacy.noise import noise_bound
from fedwcm.privacy.options import PrivacyOptions
from fedwcm.privacy.wire import ProtocolError

LOG = logging.getLogger("flwr.fedwcm")


@dataclass(frozen=True, eq=False)
class Counted:
    """The sum, the clients that are in it, and the others with the reason."""

    clients: list[int]
    total: Ints
    left_out: dict[int, str]


def count_classes(directory: ClientDirectory, classes: int, config: Config) -> Counted:
    """Sum the counts of all known clients in the way that the run asks for."""
    if config.privacy.mode == "he":
        return _encrypted_counting(directory, classes, config.privacy)
    return _plain_counting(directory, classes, config.privacy.epsilon, config.run.target_shares)


def _plain_counting(
    directory: ClientDirectory, classes: int, epsilon: float | None, target: Floats | None
) -> Counted:
    """Every client sends its counts to the server, which adds and discards them."""
    rows: dict[int, Ints] = {}

    def receive(client: int, content: RecordDict) -> None:
        rows[client] = _counts(content, classes, int(directory.samples[client]), epsilon)

    left_out = directory.ask("query.counts", dict.fromkeys(directory.known, RecordDict()), receive)
    shift = noise_bound(epsilon)
    added = (contributions(row[None], target, None, shift)[0] for row in rows.values())
    total = sum(added, np.zeros(classes + 1, dtype=np.int64))
    return Counted(sorted(rows), total, left_out)


def _counts(content: RecordDict, classes: int, samples: int, epsilon: float | None) -> Ints:
    """One client's counts, one for each class; without noise they must add up to its number of samples."""
    if "counts" not in content.metric_records:
        raise UnusableError("its counts cannot be read: the record 'counts' is missing")
    listed = items(dict(content.metric_records["counts"]), "counts")
    if len(listed) != classes:
        raise UnusableError(f"it counts {len(listed)} classes, the model has {classes}")
    noise = noise_bound(epsilon)
    counts: Ints = np.array([whole({"counts": n}, "counts", -noise, samples + noise) for n in listed])
    if epsilon is None and counts.sum() != samples:
        raise UnusableError(f"its counts {shown(listed)} add up to {counts.sum()}, it has {samples} samples")
    return counts


def _encrypted_counting(directory: ClientDirectory, classes: int, privacy: PrivacyOptions) -> Counted:
    """The server adds encrypted counts, and one of the clients decrypts the sum: see `fedwcm.privacy`."""
    reasons: dict[str, str] = {}

    def transport(requests: Mapping[str, bytes], receive: Receive) -> None:
        contents = {int(name): to_bytes_record(data) for name, data in requests.items()}
        missing = directory.ask("query.encrypted", contents, lambda k, reply: receive(str(k), _encrypted(reply)))
        for client, reason in missing.items():
            reasons.setdefault(str(client), reason)  # the first reason: late clients are not asked again

    names = tuple(map(str, directory.known))
    holders, least = privacy.key_holders, privacy.min_contributors

    def check(contributors: Sequence[str], totals: Ints) -> None:
        samples = int(directory.samples[[int(name) for name in contributors]].sum())
        noise = len(contributors) * classes * noise_bound(privacy.epsilon)
        _require_plausible(int(totals[:-1].sum()) - noise, samples, noise)

    server = Server(names, classes + 1, key_holders=holders, min_contributors=least, check_totals=check)
    result = server.run(transport)
    for refused in result.refused:
        LOG.warning("query.encrypted: a reply of client %s is not used: %s", refused.sender, refused.reason)
        reasons[refused.sender] = refused.reason
    left_out = {int(name): reasons.get(name, "its counts are not in any sum") for name in result.left_out}
    return Counted([int(name) for name in result.contributors], result.totals, left_out)


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


def _encrypted(content: RecordDict) -> bytes:
    """One client's message of the encrypted protocol."""
    data = content.config_records["encrypted"].get("data") if "encrypted" in content.config_records else None
    if not isinstance(data, bytes):
        raise UnusableError(f"its encrypted message is {shown(data)}: it must be bytes")
    return data
