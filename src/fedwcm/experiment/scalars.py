"""The numbers of a record under flat names, for tables and trackers."""

from collections.abc import Mapping, Sequence

from fedwcm.utils.json_record import Json, is_number


def scalars_of(values: Mapping[str, Json], classes: Sequence[str] = ()) -> dict[str, float]:
    """The numbers of a record: `few`, `per_class_accuracy/3`, `concentration_layers/body.1`.

    A list is flattened if it is per class; others, such as the clients of a round, mean something else each time.
    Classes whose names are given are called by them.
    """
    flat: dict[str, float] = {}
    for key, value in values.items():
        nested: Mapping[str, Json] = {}
        if isinstance(value, Mapping):
            nested = value
        elif isinstance(value, list | tuple) and key.startswith("per_class"):
            names = classes if len(set(classes)) == len(value) else map(str, range(len(value)))
            nested = dict(zip(names, value, strict=True))
        elif is_number(value):
            flat[key] = float(value)
        flat |= {f"{key}/{name}": float(item) for name, item in nested.items() if is_number(item)}
    return flat
