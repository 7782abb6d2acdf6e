"""The numbers of a record under flat names, for tables and trackers."""

from collections.abc import Mapping

from fedwcm.core.json_record import Json, is_number


def scalars_of(values: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of a record: `few`, `per_class_accuracy/3`, `concentration_layers/body.1`.

    A list is flattened if it is per class; others, such as the clients of a round, mean something else each time.
    """
    flat: dict[str, float] = {}
    for key, value in values.items():
        nested: Mapping[str, Json] = {}
        if isinstance(value, Mapping):
            nested = value
        elif isinstance(value, list | tuple) and key.startswith("per_class"):
            nested = {str(number): item for number, item in enumerate(value)}
        elif is_number(value):
            flat[key] = float(value)
        flat |= {f"{key}/{name}": float(item) for name, item in nested.items() if is_number(item)}
    return flat
