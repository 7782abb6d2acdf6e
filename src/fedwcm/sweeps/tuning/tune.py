"""The search of `fedwcm tune`: the best options of each method on validation data, all with one budget."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler
from optuna.trial import Trial

from fedwcm.config.flags import settings_from
from fedwcm.config.schema import Config
from fedwcm.config.settings import Settings, from_settings, text_of, write_toml
from fedwcm.core.checks import require, unknown
from fedwcm.data import synthetic
from fedwcm.experiment.components import Components, options_of
from fedwcm.experiment.partitioning import run_dataset
from fedwcm.reports.table import TASK_SECTIONS
from fedwcm.sweeps.plan import PlannedRun, Preflight, check, with_method
from fedwcm.sweeps.tuning.result import Tuning
from fedwcm.sweeps.tuning.study import MethodStudy, Space, of_method
from fedwcm.sweeps.tuning.trial import Plan, Search, line, run_trial, tell_pruned

INPUT_OPTIONS = ("features", "drop", "impute", "image_size", "normalize", "augment", "crop_padding")
"""Options of the data that change its inputs, and not which samples there are, or who holds them."""

VAL_FRACTION = 0.1
"""Share of the training data held out for validation, if no other is given."""

WARMUP = 0.25
"""Share of a run's rounds before it may be pruned."""


def search_options(
    methods: Sequence[str],
    space: Space,
    seeds: Sequence[int],
    trials: int,
    out: Path,
    common: Settings,
    say: Callable[[str], object] = lambda _: None,
) -> Tuning:
    """Try a number of settings of every method, several seeds each, and write what was found.

    The same call resumes a search that was stopped; in another process, it joins a search that is running.

    Args:
        methods: methods or recipes.
        space: the options to search; `method.x` is searched only for methods that have x.
        seeds: of the runs of each trial, whose mean balanced accuracy on validation data is its value.
        trials: settings to try of each method.
        out: folder of the search.
        common: all other options.
        say: called with a sentence on how each trial ended.
    """
    require(trials >= 1, "trials", trials, "at least 1")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    common = _with_validation(common)
    plans = [_plan(method, space, common) for method in methods]
    checked = check_plans(plans, space, out)
    studies = {}
    for plan in plans:
        warmup = int(WARMUP * plan.config.run.rounds)
        identity = describe_search(plan, checked[plan.name], space, seeds)
        studies[plan.name] = MethodStudy(out, plan.name, plan.space, identity, warmup)
    write_toml(from_settings(common), out / "config.toml")
    _search(Search(plans, studies, seeds, trials, say), max(tuning.round_size for tuning in checked.values()))
    tuning = Tuning(out, seeds, {name: study.trials for name, study in studies.items()})
    tuning.write()
    return tuning


def _search(search: Search, round_size: int) -> None:
    """Try settings until the budget is used: one after the other in this process, or on a cluster."""
    options = search.plans[0].config.run
    if options.backend != "ray":
        return _search_here(search)
    from fedwcm.engine.backends.on_ray.cluster import Cluster
    from fedwcm.sweeps.runs_on_cluster import spreads_runs
    from fedwcm.sweeps.tuning.on_cluster import search_on_cluster

    with Cluster(options.ray_address, options.workers):
        whole = spreads_runs(options, search.trials * len(search.plans), round_size)
        return (search_on_cluster if whole else _search_here)(search)


def _search_here(search: Search) -> None:
    for plan in search.plans:
        study = search.studies[plan.name]
        while (trial := study.next_trial(search.trials)) is not None:
            search.say(line(plan, trial, _run_trial(plan, study, trial, search.seeds)))


def describe_search(plan: Plan, checked: Preflight, space: Space, seeds: Sequence[int]) -> str:
    """Return what the trials of a method depend on besides the searched options, as text."""
    split = hashlib.blake2b(repr(checked.split).encode(), digest_size=8).hexdigest()
    objects = (checked.fingerprint, checked.config.partition, split, checked.config.model)
    return repr((sorted(text_of(plan.settings).items()), objects, sorted(map(str, space.items())), list(seeds)))


def _with_validation(common: Settings) -> Settings:
    if isinstance(common.get("data.dataset"), str) and common["data.dataset"] == synthetic.NAME:
        raise ValueError(
            f"data.dataset = {synthetic.NAME!r} cannot be tuned on: its samples are drawn as clients train, so "
            "that none can be held out for validation"
        )
    if {"data.val_fraction", "data.val_clients"} & common.keys() or run_dataset(
        from_settings(common)
    ).y_val is not None:
        return common
    return {**common, "data.val_fraction": VAL_FRACTION}


def _plan(method: str, space: Space, common: Settings) -> Plan:
    own = settings_from(method, None, None, {})
    for key in space.keys() & own.keys():
        raise ValueError(f"{method} fixes {key}, which is searched: leave it out of one of them")
    settings = with_method(common, own, method)
    return Plan(method, settings, of_method(space, _method_options(from_settings(settings))))


def _method_options(config: Config) -> dict[str, object]:
    return options_of(Components.of(config).method)


def check_plans(plans: Sequence[Plan], space: Space, out: Path) -> dict[str, Preflight]:
    """Refuse before the first trial what no method knows, what could not run, and what has no validation data."""
    for key in space.keys() - {key for plan in plans for key in plan.space}:
        methods = ", ".join(plan.name for plan in plans)
        known = {f"method.{option}" for plan in plans for option in _method_options(plan.config)}
        raise unknown(f"option of {methods}:", key, known)
    for key in space:
        unlike = key == "run.select_by" or (
            key.split(".")[0] in TASK_SECTIONS and key.partition(".")[2] not in INPUT_OPTIONS
        )
        require(not unlike, "search", key, "without it: it decides what trials are compared on")
    planned_runs = []
    for plan in plans:
        study = optuna.create_study(sampler=RandomSampler(seed=0))  # the same in each process
        some = study.ask(plan.space).params
        planned_runs.append(PlannedRun(plan.name, 0, plan.configs(some, [0])[0], out / "none"))
    checked = check(planned_runs)
    for preflight in checked.values():
        allowed = "above 0, such as 0.1, for data without a validation part: options are chosen on validation data"
        require(preflight.validates, "data.val_fraction", preflight.config.data.val_fraction, allowed)
    return checked


def _run_trial(plan: Plan, study: MethodStudy, trial: Trial, seeds: Sequence[int]) -> str:
    """Run a trial with every seed, and say how it ended."""

    def report(accuracy: float, rounds: int) -> None:
        trial.report(accuracy, rounds)
        if trial.should_prune():
            raise optuna.TrialPruned

    try:
        return run_trial(plan.configs(trial.params, seeds), report).tell(study, trial)
    except optuna.TrialPruned:
        return tell_pruned(study, trial)
    except BaseException:
        study.give_back(trial)
        raise
