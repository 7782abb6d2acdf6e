"""The repository as a project: its documentation, its metadata and what it ships."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
