"""Execute the tutorials and store their outputs in them.

python -m tools.execute_tutorials
"""

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.ipynb"))
NEEDS = {"lora-adapters": ("peft", "transformers")}
"""Packages of a tutorial that are no dependencies: without them it is left as it is."""
LONGEST_CELL = 300
"""Seconds after which a cell is taken to hang."""

QUIET = {"TQDM_DISABLE": "1"}
"""No progress bars: a stored one shows nothing but the time that it took."""


def executed(path: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a new execution, in a folder that is deleted afterwards."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=LONGEST_CELL,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env={**os.environ, **QUIET, "TMPDIR": folder})
    notebook.metadata.language_info = {"name": "python"}  # no version: any supported one will do
    return notebook


def main() -> None:
    """Execute every tutorial in place."""
    for path in TUTORIALS:
        if missing := [name for name in NEEDS.get(path.stem, ()) if find_spec(name) is None]:
            print(f"{path.name} is left as it is: {', '.join(missing)} not installed")
        else:
            nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
