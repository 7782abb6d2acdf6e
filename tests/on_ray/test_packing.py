"""Packed objects: what comes back is the same, and large arrays are not copied."""

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="needs fedwcm[ray]")

from fedwcm.engine.backends.on_ray.packing import pack, unpack

from ..factories import clusters

CPU = torch.device("cpu")


def test_tensors_come_back_and_share_the_packed_memory() -> None:
    given = {"a": torch.arange(6).reshape(2, 3), "empty": torch.zeros(0), "b": torch.tensor([True, False])}
    packed = pack(given)
    restored = unpack(packed, CPU)
    for key, value in given.items():
        assert torch.equal(restored[key], value)
        assert restored[key].dtype == value.dtype
    addresses = {array.ctypes.data for array in packed[1]}
    assert restored["a"].data_ptr() in addresses
    assert given["a"].data_ptr() in addresses


def test_what_numpy_has_no_type_for_and_what_is_not_contiguous_comes_back_too() -> None:
    half, column = torch.ones(3, dtype=torch.bfloat16), torch.arange(6).reshape(2, 3).T
    restored = unpack(pack((half, column, CPU)), CPU)
    assert torch.equal(restored[0], half)
    assert torch.equal(restored[1], column)
    assert restored[2] == CPU


def test_a_devices_tensors_become_those_of_whoever_unpacks_them() -> None:
    somewhere = torch.device("meta")
    tensor, device = unpack(pack((torch.ones(2), CPU)), somewhere)
    assert tensor.device == device == somewhere


def test_a_federation_comes_back_with_the_samples_of_every_client() -> None:
    data = clusters().federation
    restored = unpack(pack(data), CPU)
    np.testing.assert_array_equal(restored.samples, data.samples)
    for client in range(len(data.samples)):
        mine, theirs = data.shard(client), restored.shard(client)
        np.testing.assert_array_equal(mine.labels, theirs.labels)
        assert torch.equal(mine.store.inputs[mine.rows], theirs.store.inputs[theirs.rows])
