"""Find the columns of a table: by role, by name or pattern, and by the schema of a trained model."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fedwcm.core.checks import did_you_mean, nearest, shortened
from fedwcm.data.dataset import listed
from fedwcm.data.read_options import ReadOptions
from fedwcm.data.schema import Encoding

USUAL_LABELS = ("label", "target", "y", "class")


def find_column(where: str, name: str, columns: Sequence[str]) -> str:
    """Return the name if there is such a column."""
    if name not in columns:
        raise ValueError(f"{where} has no column {name!r}{did_you_mean(name, columns)}; {_all(columns)}")
    return name


def find_label(where: str, label: str | None, columns: Sequence[str]) -> str:
    """Return the label column, which must be named: guessing it wrong would go unnoticed."""
    if label is not None:
        return find_column(where, label, columns)
    usual = [column for column in columns if column.lower() in USUAL_LABELS]
    hint = f"perhaps --label {usual[0]}" if usual else _all(columns)
    raise ValueError(f"{where}: say which column holds the label, with --label NAME (label=NAME); {hint}")


def choose_features(where: str, columns: Sequence[str], options: ReadOptions) -> list[str]:
    """The columns that are features: all, or those that `features` names, without those that `drop` names."""
    chosen = list(columns)
    if options.features:
        wanted = _matching(where, "features", options.features, columns)
        chosen = [name for name in columns if name in wanted]
    dropped = _matching(where, "drop", options.drop, columns)
    chosen = [name for name in chosen if name not in dropped]
    if not chosen:
        raise ValueError(f"{where} has no feature column: nothing is left beside label, client, split and drop")
    if "" in chosen:
        raise ValueError(
            f"{where}: a column has no name, as the row numbers that pandas writes: leave it out with --drop '' "
            "(drop=['']; with others, --drop ',a,b'), or give it a name to use it as a feature"
        )
    return chosen


def match_columns(where: str, columns: Sequence[str], encoding: Encoding, options: ReadOptions) -> None:
    """Refuse a table that lacks columns of the model's schema, or has others that it does not know."""
    wanted = [column.name for column in encoding.columns] + ([encoding.image] if encoding.image else [])
    if not wanted:
        raise ValueError(
            f"{where} is a table, but the model was trained on arrays and knows no columns: pass arrays with its "
            "inputs in the same order, such as a .npz file"
        )
    dropped = _matching(where, "drop", options.drop, columns)
    roles = {encoding.label, options.label, options.client, options.split, *encoding.ignored, *dropped}
    missing = [name for name in wanted if name not in columns]
    extra = [name for name in columns if name not in wanted and name not in roles]
    if not missing and not extra:
        return
    complaints = []
    for name in missing[:10]:
        near = nearest(name, extra)
        complaints.append(f"{name!r} is missing" + (f" (renamed to {near!r}?)" if near else ""))
    if len(missing) > 10:
        complaints.append(f"{len(missing) - 10} more are missing")
    if extra:
        complaints.append(f"{listed(extra)} not known to the model (leave out with --drop, drop=[…])")
    raise ValueError(
        f"{where} has other columns than the data that the model was trained on: {'; '.join(complaints)}"
    )


def _matching(where: str, option: str, patterns: Sequence[str], columns: Sequence[str]) -> set[str]:
    """The columns that the names and patterns (`pixel_*`) stand for; each must stand for one at least."""
    found: set[str] = set()
    for pattern in patterns:
        matches = {name for name in columns if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            raise ValueError(
                f"{where}: --{option} {pattern} ({option}) matches no feature column"
                f"{did_you_mean(pattern, columns)}; {_all(columns)}"
            )
        found |= matches
    return found


def _all(columns: Sequence[str]) -> str:
    return f"its columns are {shortened((_shown(name) for name in columns), 50)}"


def _shown(name: str) -> str:
    """The name, in quotes if it is empty or has spaces at its ends, which nobody would see."""
    return name[:100] if name and name == name.strip() else repr(name[:100])
