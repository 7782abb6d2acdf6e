"""Every method on the same tails with the same tuning budget: what is run, the runs, the numbers, the page."""
