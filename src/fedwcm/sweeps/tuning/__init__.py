"""Search for good options of methods, each with the same budget, on validation data. Needs `fedwcm[tune]`."""
