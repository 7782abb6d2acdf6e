"""The presets that train nothing: the divisions of the data, and the cost of encryption."""

from pathlib import Path

from fedwcm.config.flags import settings_from
from fedwcm.config.settings import from_settings, overlay
from fedwcm.core.types import Ints
from fedwcm.data.partition import counts_of, describe
from fedwcm.experiment.files import replace_file
from fedwcm.experiment.partitioning import partition_data
from fedwcm.reports.division import division_table, draw_divisions
from fedwcm.reproduction.cells import Scope
from fedwcm.reproduction.pages import Pages, command_line
from fedwcm.reproduction.paper_numbers import rows_of_paper
from fedwcm.reproduction.presets import Preset


def write_untrained(preset: Preset, scope: Scope, folder: Path) -> Pages:
    """Measure, and write the pages."""
    return _division(preset, scope, folder) if preset.kind == "partition" else _encryption(preset, scope, folder)


def _division(preset: Preset, scope: Scope, folder: Path) -> Pages:
    dataset = (scope.dataset or preset.datasets)[0]
    counts: dict[str, Ints] = {}
    classes: tuple[str, ...] = ()
    for value in preset.grid["partition"]:
        common = preset.settings_on(dataset)
        kept = {key: common[key] for key in ("partition.clients", "partition.beta")}
        settings = overlay(common, settings_from(None, None, kept, {"partition": value}))
        settings = overlay(settings, {"run.seed": (scope.seeds or preset.seeds)[0], **(scope.settings or {})})
        data = partition_data(from_settings(settings))
        counts[str(value)] = counts_of(data.parts, data.train_labels, data.dataset.num_classes)
        classes = tuple(data.dataset.classes)
    picture = folder / f"{preset.name}.png"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [picture] if draw_divisions(counts, classes, dataset, picture) else []
    table = division_table({name: describe(table) for name, table in counts.items()})
    return _written(preset, scope, folder, f"```\n{table}\n```", drawn)


def _encryption(preset: Preset, scope: Scope, folder: Path) -> Pages:
    from fedwcm.privacy.bench import benchmark

    lines = [
        "| classes | plaintext bytes | the paper's | ciphertext bytes | the paper's |",
        "|---|---|---|---|---|",
    ]
    paper = rows_of_paper(preset.name)
    for row, printed in zip(benchmark([int(row["classes"]) for row in paper]), paper, strict=True):
        ours = (row.plaintext_bytes, row.ciphertext_bytes)
        theirs = (int(printed["plaintext_bytes"]), int(printed["ciphertext_bytes"]))
        lines.append(f"| {row.classes} | {ours[0]:,} | {theirs[0]:,} | {ours[1]:,} | {theirs[1]:,} |")
    return _written(preset, scope, folder, "\n".join(lines), [])


def _written(preset: Preset, scope: Scope, folder: Path, table: str, drawn: list[Path]) -> Pages:
    path = folder / f"{preset.name}.md"
    pictures = [f"![{preset.title}]({file.name})\n" for file in drawn]
    head = f"# {preset.title}\n\nWritten by `{command_line(preset, scope)}`.\n\n{table}\n\n"
    replace_file(path, head + "".join(pictures))
    return Pages(table, path, figures=drawn)
