"""Experiment trackers, one file each, registered like methods; entry point group `fedwcm.experiment.trackers`."""

from fedwcm.core.registry import Registry
from fedwcm.experiment.trackers.protocol import Tracker

TRACKERS: Registry[Tracker] = Registry("tracker", Tracker, __name__)
