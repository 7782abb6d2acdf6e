"""Readers of data formats, one per module.

A reader takes a path and returns `Parts`. Libraries that only one format needs are imported inside its
reader, so that importing the package stays fast. Nothing is unpickled, with one guarded exception: see
`cifar_python`.
"""
