"""Hooks of the documentation site: the root's pages, the notebooks and the API reference join docs/*.md.

MkDocs calls the functions `on_*` while it builds the site (see `mkdocs.yml`). Every file keeps the path that it
has in the repository, so that MkDocs follows, and checks, the same relative links as a reader of the repository.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from fedwcm.cli import command_line
from tools.formulas import set_formulas

ROOT = Path(__file__).parent.parent

REFERENCE = {
    "functions": (
        *("fedwcm.run", "fedwcm.compare", "fedwcm.open_run", "fedwcm.evaluate", "fedwcm.personalize"),
        *(
            "fedwcm.predict",
            "fedwcm.Predictions",
            "fedwcm.export",
            "fedwcm.tune",
            "fedwcm.sweeps.tuning.result.Tuning",
            "fedwcm.study",
            "fedwcm.Study",
        ),
        *("fedwcm.partition", "fedwcm.partitions", "fedwcm.PartitionedData"),
        *(
            "fedwcm.report",
            "fedwcm.load_model",
            "fedwcm.load_normalizer",
            "fedwcm.client_state",
            "fedwcm.Result",
            "fedwcm.Comparison",
        ),
        *("fedwcm.Evaluated", "fedwcm.Tracker"),
        *("fedwcm.reproduce", "fedwcm.watch", "fedwcm.doctor", "fedwcm.bench", "fedwcm.list_names"),
        *("fedwcm.calibrate", "fedwcm.choose_operating_point", "fedwcm.flower_init", "fedwcm.flower_check"),
    ),
    "method": ("fedwcm.core.method", "fedwcm.core.types"),
    "loss": ("fedwcm.core.loss", "fedwcm.core.batch"),
    "sampler": ("fedwcm.Sampler",),
    "participation": ("fedwcm.engine.participation",),
    "dataset": ("fedwcm.data.dataset", "fedwcm.data.partition.protocol.Partition"),
    "balance": ("fedwcm.balance",),
    "testing": ("fedwcm.testing",),
}
"""Pages of the API reference, and the modules or names whose docstrings each of them shows."""

ATTACHED = ("configs/*.toml", "examples/*/*.py", "examples/*/*.toml", "CITATION.cff", "LICENSE")
"""Files that pages may link to, published as they are."""


class NotebookFile(File):
    """A notebook as a page: its content is the Markdown made of its cells and stored outputs."""

    def is_documentation_page(self) -> bool:
        """Whether MkDocs renders this file; by itself it asks for the suffix `.md`."""
        return True


def on_config(config: MkDocsConfig) -> None:
    """Add the pages that are found or generated to the navigation."""
    groups = {title: pages for group in config.nav or [] for title, pages in group.items()}
    methods = [path for path in _paths("docs/methods/*.md") if not path.endswith("README.md")]
    groups["Tutorials"] += _paths("tutorials/*.ipynb")
    groups["Reference"] += [
        {"Commands": _reference_path("commands")},
        {"Python": [{name.capitalize(): _reference_path(name)} for name in REFERENCE]},
        {"Methods, one by one": methods},
    ]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set formulas, put the four doors of the front page first, and keep pages of runs out of the search."""
    path = page.file.src_uri
    if path.startswith("docs/results/") and path not in str(config.nav):
        page.meta["search"] = {"exclude": True}
    if path.startswith("docs/"):
        page.meta.setdefault("search", {"boost": 8 if path == "docs/data.md" else 2})
    if path == "README.md":
        doors = re.search(r"## Four doors\n.*?(?=## )", markdown, re.DOTALL)
        assert doors is not None
        markdown = markdown.replace(doors[0], "").replace("## Install\n", f"{doors[0]}## Install\n")
    return set_formulas(markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site under their paths in the repository."""
    from_theme = [file for file in files if file.src_dir != config.docs_dir]
    from_docs = [
        _file(f"docs/{file.src_uri}", config, dest_uri=file.dest_uri, inclusion=file.inclusion)
        for file in files
        if file.src_dir == config.docs_dir
    ]
    from_root = [_file(path, config) for path in _paths("*.md", *ATTACHED)]
    return Files([*from_theme, *from_docs, *from_root, *_notebooks(config), *_reference(config)])


def _paths(*patterns: str) -> list[str]:
    """Return paths below the root of the repository, in the order of the patterns and then of the alphabet."""
    return [path.relative_to(ROOT).as_posix() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def _file(
    path: str,
    config: MkDocsConfig,
    dest_uri: str | None = None,
    inclusion: InclusionLevel = InclusionLevel.INCLUDED,
) -> File:
    return File(
        path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=dest_uri, inclusion=inclusion
    )


def _notebooks(config: MkDocsConfig) -> Iterator[File]:
    """Yield each notebook's page and the images in its outputs. Nothing is executed."""
    for path in _paths("tutorials/*.ipynb"):
        stem = Path(path).stem
        names = {"unique_key": stem, "output_files_dir": f"{stem}_files"}
        content, resources = MarkdownExporter().from_filename(str(ROOT / path), resources=names)
        yield NotebookFile.generated(config, path, content=content)
        for name, data in resources["outputs"].items():
            yield File.generated(config, f"tutorials/{name}", content=data)


def _reference(config: MkDocsConfig) -> Iterator[File]:
    yield File.generated(config, _reference_path("commands"), content=_commands())
    for name, identifiers in REFERENCE.items():
        blocks = "\n\n".join(f"::: {identifier}" for identifier in identifiers)
        yield File.generated(config, _reference_path(name), content=f"# {name.capitalize()}\n\n{blocks}\n")


def _commands() -> str:
    """Return a page with the help of every command, with all of its flags."""
    os.environ["COLUMNS"] = "92"
    parser = command_line()
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    parts = [
        "# Commands",
        "What `fedwcm COMMAND --help-all` prints. Every flag is an [option](../docs/options.md).",
    ]
    for name, command in commands.items():
        parts += [f"## fedwcm {name}", f"```text\n{command.format_all_help().strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def _reference_path(name: str) -> str:
    return f"reference/{name}.md"
