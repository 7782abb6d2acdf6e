"""Writing a file in one step."""

import os
from pathlib import Path


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that a crash, or somebody who reads at the same time, meets the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(draft, path)
