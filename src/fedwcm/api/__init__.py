"""The public functions, one file each. Most have a command of the same name, which is a thin wrapper.

Import them from `fedwcm`, which loads no more of these files than the one that is used.
"""
