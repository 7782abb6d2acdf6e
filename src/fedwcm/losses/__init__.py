"""Local losses, one per file, discovered like methods; entry point group `fedwcm.losses`."""

from fedwcm.core.loss import Loss
from fedwcm.core.registry import Registry

LOSSES: Registry[Loss] = Registry("loss", Loss, __name__)
