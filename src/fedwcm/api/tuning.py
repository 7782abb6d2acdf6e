"""`fedwcm.tune`: search for the best options on validation data, each method with as many trials."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from fedwcm.api.arguments import ConfigLike, MethodLike
from fedwcm.api.description import describe_settings, method_text
from fedwcm.api.keywords import CompareKeywords
from fedwcm.config.flags import refuse_varied
from fedwcm.experiment.progress import in_notebook
from fedwcm.sweeps.plan import method_list, seed_list
from fedwcm.utils.extras import optional_module

if TYPE_CHECKING:
    from fedwcm.sweeps.tuning.result import Tuning


def tune(
    methods: Sequence[MethodLike],
    search: Mapping[str, object],
    out: str | Path,
    *,
    seeds: Sequence[int] = (0,),
    trials: int = 20,
    space: str | Path | None = None,
    config: ConfigLike | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Callable[[str], object] | bool | None = None,
    **options: Unpack[CompareKeywords],
) -> "Tuning":
    """Search for the options with the best balanced validation accuracy, each method with as many trials.

    The same call goes on with a search that was stopped; in another process it joins one that is going on. Needs
    Optuna: `pip install 'fedwcm[tune]'`.

    Args:
        methods: methods or recipes, each with options in brackets if need be; or a `Method` that
            can be imported, or its class.
        search: options to search, by keyword or dotted name, with their ranges: `"log:0.003:0.3"`, `"0.05:0.5"`,
            `"int:1:10"`, or a list of values. An option of a method is searched where the method has it.
        out: folder of the search.
        seeds: of the runs of each trial, whose mean balanced accuracy on validation data is its value.
        trials: settings to try of each method.
        space: a TOML file with more options to search.
        config: a TOML file or a `Config` to start from.
        settings: dotted options, such as `{"method.q": "off"}`.
        progress: whether to say how each trial ended, by default in a notebook only; or a function that is called
            with that sentence.
        options: common options, as in `fedwcm.run`.
    """
    optional_module("optuna", "tune", "fedwcm.tune")
    from fedwcm.sweeps.tuning.study import space_from
    from fedwcm.sweeps.tuning.tune import search_options

    refuse_varied(search, "the search", settings, options)
    common = describe_settings(None, config, settings, options)
    names = method_list([method_text(method) for method in method_list(methods)])  # a class may repeat a name
    ranges, all_seeds = space_from(search, space), seed_list(seeds)
    return search_options(names, ranges, all_seeds, trials, Path(out), common, _say(progress))


def _say(progress: Callable[[str], object] | bool | None) -> Callable[[str], object]:
    shown = in_notebook() if progress is None else progress
    if not isinstance(shown, bool):
        return shown
    stream = sys.stdout if in_notebook() else sys.stderr
    return (lambda text: print(text, file=stream)) if shown else (lambda _: None)
