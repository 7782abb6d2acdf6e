"""Samplers, one file each, found like methods; entry point group `fedwcm.samplers`."""

from fedwcm.core.batches import Sampler
from fedwcm.core.registry import Registry

SAMPLERS: Registry[Sampler] = Registry("sampler", Sampler, __name__, "fedwcm.samplers")
