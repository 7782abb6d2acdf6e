"""Experiment trackers, one file each, found like methods; entry point group `fedwcm.trackers`."""

from fedwcm.core.registry import Registry
from fedwcm.trackers.protocol import Tracker

TRACKERS: Registry[Tracker] = Registry("tracker", Tracker, __name__, "fedwcm.trackers")
