"""Samplers, one per file, discovered like methods; entry point group `fedwcm.samplers`."""

from fedwcm.core.registry import Registry
from fedwcm.core.sampler import Sampler

SAMPLERS: Registry[Sampler] = Registry("sampler", Sampler, __name__)
