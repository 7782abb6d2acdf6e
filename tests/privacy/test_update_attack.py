"""What a client's update says of its class counts, however well these are encrypted."""

import pytest
from tools import measure_update_attack as measure


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_updates_give_counts_away_unless_batches_are_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SHADOWS", 150)
    settings = {setting.name: setting for setting in measure.SETTINGS}
    plain = measure.attack(settings["FedWCM"], range(1))
    balanced = measure.attack(settings["FedWCM, balanced batches"], range(1))
    assert (plain.attacked == plain.true).mean() > 0.5
    assert abs(plain.attacked - plain.true).mean() < 1.0
    assert abs(balanced.attacked - balanced.true).mean() > 3.0
    assert (plain.from_totals == plain.true).mean() < 0.2
