"""Federated methods, one file each. A file here is found by itself: its class's `name` is its registry name.

Methods of other packages join through the entry point group `fedwcm.methods`.
"""

from fedwcm.core.method import Method
from fedwcm.core.registry import Registry

METHODS: Registry[Method] = Registry("method", Method, __name__, "fedwcm.methods")
