"""Many runs: comparisons and searches, planned, checked, and run in processes or on a cluster."""
