"""Data of the server's own: where it comes from and what models make of it; the laws of FedIC's teacher."""

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedwcm
from fedwcm.config.settings import decisive, from_settings, to_settings
from fedwcm.engine.network import Network
from fedwcm.engine.server_data import ServerSamples
from fedwcm.experiment.folder import RunFolder
from fedwcm.methods.fedic import Votes

from ..factories import IMAGE, clusters, conv_batchnorm

DIGITS: dict[str, Any] = {"dataset": "digits", "imbalance": 0.05, "clients": 5, "beta": 0.5}
RUN: dict[str, Any] = {**DIGITS, "rounds": 2, "epochs": 1, "settings": {"method.distill_steps": 3}}
HEADLESS = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())


def test_the_server_s_samples_are_no_client_s_and_none_of_the_validation() -> None:
    without, own = (fedwcm.partition(**DIGITS, val_fraction=0.1, server_fraction=f) for f in (0.0, 0.2))
    clients = np.concatenate(own.rows)
    assert sorted([*clients, *own.server_rows]) == sorted(np.concatenate(without.rows))
    np.testing.assert_array_equal(own.val_rows, without.val_rows)
    counts = without.counts.sum(axis=0)
    np.testing.assert_array_equal(own.server_counts, np.floor(counts * 0.2 + 0.5))
    assert not len(without.server_rows)


def test_before_the_tail_is_cut_the_server_has_as_many_of_every_class() -> None:
    both = [
        fedwcm.partition(**DIGITS, server_fraction=0.1, settings={"data.server_before_tail": before})
        for before in (False, True)
    ]
    after, before = (division.server_counts for division in both)
    assert after.max() > 10 * after.min()
    assert before.max() < 1.1 * before.min()
    assert not set(both[1].server_rows) & set(np.concatenate(both[1].rows))


def test_a_class_that_the_server_has_none_of_is_named() -> None:
    with pytest.warns(UserWarning, match=r"data.server_fraction = 0.02 leaves the server no sample of class '\d'"):
        fedwcm.partition(**DIGITS, server_fraction=0.02)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedic", {}, r"data.server_fraction = 0.0 is not allowed.*above 0 with the method fedic"),
        ("fedavg", {"server_fraction": 1.0}, r"server_fraction = 1.0.*in \[0, 1\)"),
        (
            "fedavg",
            {"settings": {"data.server_before_tail": True}},
            "server_before_tail = True.*data.server_fraction",
        ),
        (
            "fedic",
            {"server_fraction": 0.1, "imbalance": "none", "settings": {"data.server_before_tail": True}},
            "server_before_tail = True.*without a long tail",
        ),
        ("fedic", {"server_fraction": 0.1, "dataset": "synthetic"}, "data.server_fraction = 0.1.*synthetic"),
        (
            "fedic",
            {"server_fraction": 0.1, "model": HEADLESS},
            "needs a model with a final linear layer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedwcm.run(method, **{**RUN, "settings": {}, **options})


def test_the_run_says_what_its_server_has(tmp_path: Path) -> None:
    fedwcm.run("fedic", **RUN, server_fraction=0.1, out=tmp_path / "run")
    record = RunFolder(tmp_path / "run").partition()
    assert record is not None
    assert record.server == tuple(fedwcm.partition(**DIGITS, server_fraction=0.1).server_counts)
    page = fedwcm.report(tmp_path / "run").read_text()
    assert f"{sum(record.server)} more are the server's own" in html.unescape(page)


def test_models_are_run_as_they_will_be_tested_and_gradients_are_their_slopes() -> None:
    data, network = clusters(shape=IMAGE), Network(conv_batchnorm())
    x, buffers = network.initial()
    store = data.federation.shard(0).store
    own = ServerSamples(network, store.inputs, store.labels, buffers)
    logits, _ = own.outputs(x)
    shifted, _ = own.outputs(x, buffers + 1.0)
    network.point_parameters(x)
    network.point_buffers(buffers)
    torch.testing.assert_close(logits, network.module.eval()(store.inputs))
    assert not torch.allclose(logits, shifted)
    rows = torch.arange(7)
    g = own.gradient(x, rows, lambda each: each.square().sum())
    up, down = (own.outputs(x + sign * 1e-6 * g)[0][:7].square().sum() for sign in (1, -1))
    assert float(up - down) / 2e-6 == pytest.approx(float(g.square().sum()), rel=1e-5)


def test_the_teacher_begins_in_the_middle_and_has_no_order_of_clients() -> None:
    rng = torch.Generator().manual_seed(0)
    votes = Votes(*(torch.randn(*shape, generator=rng) for shape in ((3, 6, 4), (6, 5), (6, 4))))
    alike = replace(votes, clients=votes.clients[:1].expand(3, -1, -1))
    torch.testing.assert_close(alike.teach(votes.start()), (alike.clients[0] + votes.tuned) / 2)
    theta = torch.randn(len(votes.start()), generator=rng)
    other = replace(votes, clients=votes.clients.flip(0))
    torch.testing.assert_close(other.teach(theta), votes.teach(theta))


def test_runs_without_data_for_the_server_have_the_options_of_older_versions() -> None:
    without, own = (decisive(to_settings(from_settings({"data.server_fraction": share}))) for share in (0.0, 0.1))
    assert {*own} - {*without} == {"data.server_fraction"}
