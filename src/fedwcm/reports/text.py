"""The sentences of a report: the setup, the headline, the warnings."""

from collections.abc import Sequence
from pathlib import PurePath

from fedwcm.config.recipes import RECIPES
from fedwcm.config.settings import Settings
from fedwcm.experiment.records import VALIDATION_METRICS
from fedwcm.experiment.run import Run
from fedwcm.reports.load import MethodRuns, differing
from fedwcm.reports.series import megabytes
from fedwcm.utils.json_record import is_number
from fedwcm.utils.text import rough_duration

METHOD_SECTIONS = ("method", "loss", "sampler")
"""Sections of the options that together define a method."""


def run_title(run: Run) -> str:
    """Return the title of the report of one run."""
    return f"{run.label} on {dataset_name(run.settings)}"


def comparison_title(groups: Sequence[MethodRuns]) -> str:
    """Return the title of the report of several methods."""
    sets = list(dict.fromkeys(dataset_name(group.settings) for group in groups))
    return f"{count_nouns(len(groups), _kind(groups))} compared on {join_names(sets)}"


def _kind(groups: Sequence[MethodRuns]) -> str:
    """Say whether methods are compared, or methods under several settings."""
    recipes = [RECIPES.get(str(group.settings.get("run.name"))) for group in groups]
    named = {key for recipe in recipes if recipe for key in recipe.settings}
    others = [key for key in differing(groups) if key.split(".")[0] not in METHOD_SECTIONS and key not in named]
    return "setting" if others else "method"


def dataset_name(settings: Settings) -> str:
    """Return the name of the data set; of a file or folder, without its directory."""
    name = str(settings.get("data.dataset", "unknown data")).removeprefix("object:").partition("#")[0]
    return name if ":" in name else PurePath(name).name


def run_setup(run: Run, differing_keys: Sequence[str] = ()) -> list[str]:
    """Describe data, clients and training of a run, a sentence each, without options that differ between runs."""
    return [_data(run), _clients(run), _training(run, differing_keys)]


def privacy(groups: Sequence[MethodRuns]) -> list[str]:
    """Say what was hidden of the clients' class counts, and at what cost: once for all, or for each method."""
    modes = {(group.settings.get("privacy.mode"), group.settings.get("privacy.epsilon")) for group in groups}
    if len(modes) == 1:
        sentence = _hidden([run for group in groups for run in group.runs])
        return [f"Privacy: {sentence}"] if sentence else []
    return [f"Privacy of {group.label}: {sentence}" for group in groups if (sentence := _hidden(group.runs))]


def _hidden(runs: Sequence[Run]) -> str:
    sentences, settings = [], runs[0].settings
    if settings.get("privacy.mode") == "he":
        sentences.append(f"the class counts were added up under homomorphic encryption{_cost(runs)}")
    if (epsilon := settings.get("privacy.epsilon")) is not None:
        sentences.append(f"noise hides whether a sample is there (ε = {epsilon}) and its class (2ε)")
    return "; ".join(sentences) + "." if sentences else ""


def _cost(runs: Sequence[Run]) -> str:
    """Return what encryption cost a run, the mean over the runs."""
    costs = [run.summary.encryption for run in runs if run.summary and run.summary.encryption]
    if not costs:
        return ""
    clients, up, down, seconds = (
        sum(cost[key] for cost in costs) / len(costs) for key in ("clients", "bytes_up", "bytes_down", "seconds")
    )
    sent = f"{clients:.0f} clients sent {up / 1e6:.3g} MB and received {down / 1e6:.3g} MB"
    mean = " (mean of the runs)" if len(costs) > 1 else ""
    return f" before the first round: {sent}, in {rough_duration(seconds)}{mean}"


def comparison_setup(groups: Sequence[MethodRuns]) -> list[str]:
    """Say how many runs there are, and the setup that they share; where they differ, that of the first."""
    runs = [run for group in groups for run in group.runs]
    seeds = len({str(run.seed) for run in runs})
    kind = _kind(groups)
    sentence = f"{count_nouns(len(groups), kind)}, {count_nouns(seeds, 'seed')}, {count_nouns(len(runs), 'run')}."
    if kind == "setting":
        sentence += f" What follows holds for {runs[0].label}; the options that differ are listed below."
    return [sentence, *run_setup(runs[0], differing(groups))]


def run_headline(run: Run) -> list[str]:
    """Return the result of one run."""
    if not run.history:
        return ["The run ended before it was evaluated." if run.diverged else "No round was evaluated yet."]
    final, best = run.outcome.final_accuracy, run.outcome.best_accuracy
    if final is None or best is None:
        return ["There was no data to test on: only the clients' own training is measured."]
    when = "The model ends" if run.finished else "So far the model is"
    if run.diverged:
        when = "Before it diverged the model was"
    balanced = None if run.outcome.selected_accuracy is not None else run.outcome.balanced_accuracy
    sentences = [f"{when} at {_accuracies(run, balanced, final)}; the best evaluation had {best:.3f}."]
    sentences = [*_describe_selection(run), *sentences]
    if run.summary is not None and run.summary.stopped:
        sentences.append(f"It stopped early, {run.summary.stopped}.")
    many, few = run.outcome.many, run.outcome.few
    if many is not None and few is not None:
        sentences.append(f"Frequent classes reach {many:.3f}, rare ones {few:.3f}.")
    return sentences


def _accuracies(run: Run, balanced: float | None, accuracy: float) -> str:
    """Return the accuracies of a model: on an unbalanced test set the mean over its classes comes first."""
    unbalanced = run.summary is not None and run.summary.has_unbalanced_test_set
    if balanced is None or not unbalanced:
        return f"a test accuracy of {accuracy:.3f}"
    return f"a balanced accuracy of {balanced:.3f} and a test accuracy of {accuracy:.3f}"


def _describe_selection(run: Run) -> list[str]:
    """Return what was selected on the validation data, if there is any."""
    outcome = run.outcome
    value = outcome.number(VALIDATION_METRICS[run.select_by])
    if outcome.selected_accuracy is None or value is None:
        return []
    metric = run.select_by.replace("_", " ")
    return [
        f"The model of round {outcome.selected_round} is kept, the best on the validation data "
        f"({metric} {value:.3f}): it has {_accuracies(run, outcome.balanced_accuracy, outcome.selected_accuracy)}."
    ]


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return label, number and remark of the headline numbers."""
    outcome = run.outcome
    shown = [
        (label, f"{value:.3f}", remark)
        for label, key, remark in ACCURACIES
        if (value := outcome.number(key)) is not None
    ]
    if (tuned := run.personalized) is not None and "client_mean" in tuned.after:
        before = f"mean of the clients after fine-tuning; {tuned.before['client_mean']:.3f} before"
        shown.append(("fine-tuned", f"{tuned.after['client_mean']:.3f}", before))
    rounds = f"of {run.settings.get('run.rounds', '?')}"
    shown.append(("rounds", str(outcome.rounds), rounds))
    if (mb := megabytes(run)) is not None:
        total = f"sent and received; {mb * outcome.rounds:,.3g} MB in all"
        shown.append(("MB per round", f"{mb:,.3g}", total))
    if run.history:
        last = run.history[-1]
        shown.append(
            ("time", rough_duration(last.seconds), f"{last.seconds / max(1, last.round):.2g} s per round")
        )
    return shown


ACCURACIES = (
    ("balanced accuracy", "balanced_accuracy", "on the test data, each class counts once"),
    ("few", "few", "rare classes"),
    ("medium", "medium", "classes between"),
    ("many", "many", "frequent classes"),
    ("selected accuracy", "selected_accuracy", "test accuracy of the best round on the validation data"),
    ("validation", "val_accuracy", "accuracy of that round on the validation data"),
    ("final accuracy", "final_accuracy", "on the test data"),
    ("best", "best_accuracy", "of all evaluations"),
    ("last 10 evaluations", "last_mean_accuracy", "their mean accuracy"),
    ("macro F1", "macro_f1", "mean over classes"),
    ("training set", "train_set_accuracy", "on all training data"),
    ("clients", "client_mean", "mean accuracy, each counts once"),
    ("worst decile", "client_worst_decile", "mean accuracy of the worst tenth of the clients"),
    ("std of clients", "client_std", "of their accuracies"),
)


def unbalanced_test_set(groups: Sequence[MethodRuns]) -> list[str]:
    """Return what to say if the test set is unbalanced, as SVHN's is, with the mean over its classes."""
    summaries = [summary for group in groups for summary in group.summaries]
    sizes = next((summary.test_counts for summary in summaries if summary.has_unbalanced_test_set), None)
    if sizes is None:
        return []
    balanced = {group.label: [run.outcome.balanced_accuracy for run in group.counted] for group in groups}
    means = {label: [v for v in values if v is not None] for label, values in balanced.items()}
    listed = ", ".join(f"{label} {sum(values) / len(values):.3f}" for label, values in means.items() if values)
    return [
        f"The test set is unbalanced: its classes have {min(sizes):,} to {max(sizes):,} samples, so "
        f"that frequent ones dominate the accuracy. The balanced accuracy, the mean over the classes: {listed}."
    ]


def _data(run: Run) -> str:
    counts = [count for count in run.train_counts if count]
    sentence = f"Data: {dataset_name(run.settings)}"
    if counts:
        sentence += (
            f", {sum(counts):,} training samples of {count_nouns(len(run.train_counts), 'class', 'classes')}"
        )
        sentence += f", the most frequent with {max(counts):,} samples and the rarest with {min(counts):,}"
        if (ratio := max(counts) / min(counts)) >= 1.5:
            sentence += f" (1 to {ratio:.3g})"
    if run.partition and (server := run.partition.server):
        sentence += f"; {sum(server):,} more are the server's own, {min(server):,} to {max(server):,} of a class"
    return sentence + "."


def _clients(run: Run) -> str:
    settings = run.settings
    number = run.partition.clients if run.partition else settings.get("partition.clients")
    options = [f"{key.removeprefix('partition.')} {value}" for key, value in settings.items() if _is_option(key)]
    sentence = f"Clients: {number if number is not None else 'the real ones'}"
    division = settings.get("partition.name", "natural")
    sentence += ", as the data name them" if division == "natural" else f", divided by “{division}”"
    sentence += f" ({', '.join(options)})" if options else ""
    share, dropout = settings.get("participation.fraction"), settings.get("participation.dropout")
    if is_number(share):
        sentence += f"; {100 * share:.3g} % of them are asked to train in a round"
    return sentence + (f", of whom {100 * dropout:.3g} % never answer." if is_number(dropout) and dropout else ".")


def _is_option(key: str) -> bool:
    return key.startswith("partition.") and key not in ("partition.name", "partition.clients")


def _training(run: Run, differing_keys: Sequence[str]) -> str:
    settings = run.settings
    model, rounds, batch, rate = (settings.get(key, "?") for key in TRAINING)
    work = next((unit for unit in ("step", "epoch") if f"local.{unit}s" in settings), "epoch")
    amount = count_nouns(settings.get(f"local.{work}s", "?"), work)
    total, trained = settings.get("model.parameters"), run.summary and run.summary.parameters
    if trained and is_number(total) and total > trained:
        model = f"{model} ({trained:,} of its {total:,} parameters are trained and sent)"
    sentence = f"Training: model {model}, {count_nouns(rounds, 'round')}; a client takes {amount} "
    sentence += f"in batches of {batch} at a learning rate of {f'{rate:g}' if is_number(rate) else rate}"
    for part, usual in (("loss", "cross_entropy"), ("sampler", "uniform")):
        name = settings.get(f"{part}.name", usual)
        if name != usual and f"{part}.name" not in differing_keys:
            sentence += f", with the {part} “{name}”"
    return sentence + "."


TRAINING = ("model.name", "run.rounds", "local.batch_size", "local.lr")


def plain_number(value: float) -> str:
    """Return two digits of a number; of a very large one the power of ten: 1.3×10³¹."""
    if abs(value) < 1e5:
        return f"{value:.2g}" if abs(value) < 100 else f"{value:,.0f}"
    digits, _, exponent = f"{value:.1e}".partition("e+")
    return f"{float(digits):g}×10{exponent.lstrip('0').translate(RAISED)}"


RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def count_nouns(count: object, one: str, many: str | None = None) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def join_names(names: Sequence[str]) -> str:
    """Return names as a phrase: `a, b and c`."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
