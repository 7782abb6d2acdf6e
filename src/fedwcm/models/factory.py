"""Models from the user's own function or class."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedwcm.models.checks import require_known

BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def call(
    name: str,
    factory: Callable[..., object],
    input_shape: tuple[int, ...],
    classes: int,
    options: Mapping[str, Any],
) -> object:
    """Call a factory with the arguments that its signature names, and all `options` as keywords.

    `input_shape`, and `classes` or `num_classes`, are passed if the signature names them. `**kwargs` receives
    options but none of these, because a factory that forwards its keywords may not accept them. A factory that
    names none of them and has exactly two required arguments gets the shape and the number of classes.
    """
    offered = {"input_shape": input_shape, "classes": classes, "num_classes": classes}
    parameters = inspect.signature(factory).parameters
    named = [key for key, parameter in parameters.items() if parameter.kind in BY_KEYWORD]
    positional = () if set(named) & set(offered) else _nameless(parameters, options)
    if inspect.Parameter.VAR_KEYWORD not in [parameter.kind for parameter in parameters.values()]:
        for option in options:
            require_known(f"model {name!r}: option", option, [key for key in named if key not in offered])
    values = (input_shape, classes)[: len(positional)]
    keywords = {key: value for key, value in offered.items() if key in named} | dict(options)
    try:
        inspect.signature(factory).bind(*values, **keywords)
    except TypeError as error:
        raise ValueError(f"model {name!r} cannot be built from the options {dict(options)!r}: {error}") from error
    try:
        return factory(*values, **keywords)
    except TypeError as error:
        arguments = "(input_shape, classes)" if values else ", ".join(keywords) or "no arguments"
        raise ValueError(
            f"model {name!r} cannot be made from {arguments}, here {input_shape} and {classes}: {error}; allowed "
            "are an nn.Module, and a function or class that takes input_shape and classes"
        ) from error


def _nameless(parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the two required positional parameters of a factory; none if there are not exactly two."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = tuple(
        key
        for key, parameter in parameters.items()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty and key not in options
    )
    return needed if len(needed) == 2 else ()
