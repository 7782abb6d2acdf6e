"""What is measured: accuracy per class and per shot, and the history of a run."""
