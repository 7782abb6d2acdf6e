"""`fedwcm.evaluate`: test a trained model."""

from pathlib import Path
import numpy as np, torch
from fedwcm.api.trained import input_normalizer, trained
from fedwcm.data import Dataset, load_dataset
from fedwcm.engine.evaluate import evaluate as evaluate_network
from fedwcm.engine.network import Network
from fedwcm.metrics.classification import summarise
from fedwcm.runs.folder import Record, RunFolder

def evaluate(folder: str | Path, dataset: str | Path | Dataset, **options: object) -> Record:
    """Test the model of a run on the test part of other data. Classes are matched by name.

    `options` are those of `fedwcm.data.load_dataset`: `data_dir`, `label`, `client`, `split`, `test_fraction`.
    """
    module, facts = trained(Path(folder), None, False)
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset, **options)  # type: ignore[arg-type]
    known = facts["classes"]
    assert isinstance(known, list)
    missing = sorted(set(data.classes) - set(known))
    if missing:
        raise ValueError(f"{data.name} has classes that the model does not know: {', '.join(missing)}")
    if list(data.input_shape) != facts["input_shape"]:
        raise ValueError(f"{data.name} has inputs of shape {data.input_shape}, the model {facts['input_shape']}")
    numbers = np.array([known.index(name) for name in data.classes])
    inputs = torch.from_numpy(input_normalizer(facts)(data.x_test))
    network = Network(module)
    tested = evaluate_network(
        network, *network.initial(), inputs, torch.from_numpy(numbers[data.y_test]), len(known)
    )
    train_counts = np.array(RunFolder(Path(folder)).summary()["train_counts"])
    return {"samples": len(inputs), "test_loss": tested.loss, **summarise(tested.confusion, train_counts)}
