"""Readers of data formats, one per module.

A reader takes a path and returns `RawSplits`. Libraries that only one format needs are imported inside its
reader, so that importing the package stays fast. Files come from outside: nothing is unpickled, what is unpacked
is bounded, and whatever a parser raises becomes a ValueError that names the file (`safety`).
"""
