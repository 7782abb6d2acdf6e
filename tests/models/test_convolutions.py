"""Every convolution of every model has the gradients of float64, whatever the instruction set and the threads."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fedwcm.diagnosis.convolutions import EXAMPLES, Convolution, check_convolutions
from fedwcm.models import MODELS, build_model

# What a machine does not have, oneDNN does not use: the limits are then those of the machine.
INSTRUCTION_SETS = ["SSE41", "AVX2", "AVX512_CORE", None]
IMAGES = [(1, 28, 28), (3, 32, 32)]
# The most multiplications a convolution may take: wide layers get smaller batches, or the scan would take hours.
PRODUCTS = 200_000_000


def convolutions(name: str, shape: tuple[int, int, int], batch: int, **options: object) -> list[Convolution]:
    """The convolutions of a model, each once."""
    found: list[Convolution] = []

    def note(layer: nn.Module, arguments: tuple[Tensor, ...], _: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            found.append(
                Convolution(
                    channels=layer.in_channels,
                    filters=layer.out_channels,
                    side=arguments[0].shape[-1],
                    kernel=layer.kernel_size[0],
                    stride=layer.stride[0],
                    padding=int(layer.padding[0]),
                    batch=batch,
                    bias=layer.bias is not None,
                    layer=f"{type(layer).__module__}:{type(layer).__name__}",
                )
            )

    with register_module_forward_hook(note):
        build_model(name, shape, 10, 0, **options)
    return list(dict.fromkeys(found))


def affordable_batch(c: Convolution, most: int) -> int:
    products = c.channels * c.filters * (c.kernel * c.side // c.stride) ** 2
    return max(1, min(most, PRODUCTS // products))


def problems(chosen: list[Convolution], **settings: Any) -> list[str]:
    return [f"{each}" for each in check_convolutions(chosen, **settings) if each.problem]


def test_gradients_are_right_under_two_instruction_sets() -> None:
    narrow = convolutions("resnet8", (3, 32, 32), batch=6, width=4)
    odd = convolutions("resnet18", (1, 28, 28), batch=3, width=6)
    strided = [c for c in narrow + odd if c.stride > 1 and c.channels < 16]
    assert {c.kernel for c in strided} == {1, 3, 7}
    assert problems([*EXAMPLES, *strided], isas=["SSE41", "AVX2"], threads=[1]) == []


@cache
def every_convolution() -> list[Convolution]:
    """The convolutions of all models at all widths, with batches of all sizes."""
    found: dict[Convolution, None] = {}
    for width, name, shape in product(range(1, 65), MODELS, IMAGES):
        options = {"width": width, "groups": 1} if name.startswith("resnet") else {}
        if options or width == 1:
            found |= dict.fromkeys(convolutions(name, shape, batch=1, **options))
    batches = cycle(range(1, 51))
    return [replace(each, batch=affordable_batch(each, next(batches))) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_every_convolution_of_every_model(isa: str | None, threads: int) -> None:
    chosen = every_convolution()
    assert {each.batch for each in chosen} == set(range(1, 51))
    assert problems(chosen, isas=[isa], threads=[threads], timeout=600) == []


# The check itself


FAULTY = """
import os, signal, time
from torch import nn

class Wrong(nn.Conv2d):
    def forward(self, x):
        return 1.001 * super().forward(x)

class Crashing(nn.Conv2d):
    def forward(self, x):
        os.kill(os.getpid(), signal.SIGSEGV)

class Failing(nn.Conv2d):
    def forward(self, x):
        raise SystemExit(3)

class Hanging(nn.Conv2d):
    def forward(self, x):
        time.sleep(600)
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Convolution]:
    """Makes a convolution that is computed by a class of the module `faulty`."""
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return lambda name: replace(EXAMPLES[0], layer=f"faulty:{name}")


def test_a_fault_is_seen_and_does_not_hide_the_next_convolution(faulty: Callable[[str], Convolution]) -> None:
    chosen = [faulty("Wrong"), faulty("Crashing"), EXAMPLES[0], faulty("Failing"), faulty("Hanging")]
    outcomes = check_convolutions(chosen, threads=[1], timeout=2.0)
    assert [each.convolution for each in outcomes] == chosen
    wrong, *others = (each.problem for each in outcomes)
    assert wrong.startswith("wrong by ")
    assert others == ["ended by SIGSEGV", "", "ended by exit code 3", "no answer after 2 seconds"]
