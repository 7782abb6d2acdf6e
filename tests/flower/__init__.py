"""Tests of the Flower adapter: all are skipped where Flower is not installed."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedwcm[flower]'")
