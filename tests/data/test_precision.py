"""Numbers far from 0 and close to each other, such as Unix times, stay apart until they are normalised."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedwcm
from fedwcm.core.batch import LazyInputs
from fedwcm.data import load_dataset, load_rows
from fedwcm.data.inputs import model_inputs
from fedwcm.data.normalize import Normalizer, choose_normalizer

COUNT, START = 400, 1_700_000_000
ORDER = np.random.default_rng(0).permutation(COUNT)
LABELS = (ORDER >= COUNT // 2).astype(int)
CPU = torch.device("cpu")


def table(start: float = START, **others: Any) -> pd.DataFrame:
    return pd.DataFrame({"time": start + ORDER, **others, "y": LABELS})


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "integers": (table(), {"label": "y"}),
    "beside floats": (table(age=ORDER / 7), {"label": "y"}),
    "beside categories": (table(colour=["red", "blue"] * (COUNT // 2)), {"label": "y"}),
    "imputed": (table(), {"label": "y", "impute": "median"}),
    "fractions": (table(START + 0.25), {"label": "y"}),
    "array of integers": ((START + ORDER[:, None], LABELS), {}),
    "array of floats": ((START + 0.25 + ORDER[:, None], LABELS), {}),
    "sequences": ((START + 0.25 + ORDER[:, None, None] + np.zeros((COUNT, 3, 2)), LABELS), {}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_values_are_as_distinct_normalised_as_they_were(kind: str) -> None:
    source, options = SOURCES[kind]
    data = load_dataset(source, **options)
    normalizer, _ = choose_normalizer(data.x_train, "auto")
    for x in (data.x_train, data.x_test):
        early = normalizer(x)
        assert early.dtype == np.float32
        assert len(np.unique(early.reshape(len(x), -1)[:, 0])) == len(x)
        late = model_inputs(x, normalizer, CPU, prepared=False)
        assert isinstance(late, LazyInputs)
        assert torch.equal(late[:], torch.from_numpy(early))
    assert abs(float(normalizer(data.x_train)[..., 0].mean())) < 1e-3


def test_ordinary_numbers_stay_float32_and_are_normalised_as_ever() -> None:
    x = np.random.default_rng(1).normal(50, 10, size=(COUNT, 3))
    data = load_dataset((x, LABELS))
    assert data.x_train.dtype == np.float32
    assert load_dataset(pd.DataFrame({"x": x[:, 0], "y": LABELS}), label="y").x_train.dtype == np.float32
    normalizer = Normalizer.fit(data.x_train)
    assert not normalizer.is_double
    mean, std = normalizer.mean.astype(np.float32), normalizer.std.astype(np.float32)
    np.testing.assert_array_equal(normalizer(data.x_train), (data.x_train - mean) / std)
    assert not Normalizer.fit(np.full((9, 2, 2, 1), 200, np.uint8)).is_double


def test_all_parts_are_as_precise_as_the_training_part() -> None:
    far = np.array([[START + 0.25], [0.0]])
    data = load_dataset((START + 0.25 + ORDER[:, None], LABELS, far, np.array([0, 1])))
    assert data.x_test[:, 0].tolist() == [START + 0.25, 0.0]


def test_other_data_is_read_as_precisely_whatever_its_spread() -> None:
    for source, options in (SOURCES["beside floats"], SOURCES["imputed"]):
        schema = load_dataset(source, **options).schema
        new = source.iloc[:2].assign(time=[START + 1, 1])
        assert load_rows(new, schema).x[:, 0].tolist() == [START + 1, 1]
    schema = load_dataset(SOURCES["array of floats"][0]).schema
    assert load_rows(([[START + 0.25], [1.0]], [0, 1]), schema).x[:, 0].tolist() == [START + 0.25, 1.0]


def test_inputs_that_stay_as_they_are_are_warned_about_by_name() -> None:
    data = load_dataset(SOURCES["beside floats"][0], label="y")
    with pytest.warns(UserWarning, match="data.normalize = none: float32 rounds .* column 'time' until"):
        choose_normalizer(data.x_train, "none", names=data.feature_names)


def test_a_run_learns_from_times_and_its_folder_and_export_keep_them_apart(tmp_path: Path) -> None:
    source = table(age=ORDER % 7 / 7)
    result = fedwcm.run(
        "fedavg", dataset=source, label="y", clients=4, participation=1.0, rounds=20, lr=0.5, out=tmp_path / "run"
    )
    assert result.summary.final_accuracy is not None
    assert result.summary.final_accuracy > 0.9
    predicted = fedwcm.predict(tmp_path / "run", source.drop(columns="y"))
    assert np.mean([row == str(label) for row, label in zip(predicted.labels, LABELS, strict=True)]) > 0.9
    path = fedwcm.export(tmp_path / "run", "torchscript", tmp_path / "model.pt")
    raw = torch.from_numpy(source[["time", "age"]].to_numpy())
    probabilities = torch.jit.load(path)(raw)[1].detach().numpy()
    np.testing.assert_allclose(probabilities, predicted.probabilities, atol=1e-5)
