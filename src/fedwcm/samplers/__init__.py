"""Samplers, one per file, discovered like methods; entry point group `fedwcm.samplers`."""

from fedwcm.core.batch import Sampler
from fedwcm.core.registry import Registry

SAMPLERS: Registry[Sampler] = Registry("sampler", Sampler, __name__)
