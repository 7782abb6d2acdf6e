"""Local objectives, one file each, found like methods; entry point group `fedwcm.objectives`."""

from fedwcm.core.objective import Objective
from fedwcm.core.registry import Registry

OBJECTIVES: Registry[Objective] = Registry("loss", Objective, __name__, "fedwcm.objectives")
