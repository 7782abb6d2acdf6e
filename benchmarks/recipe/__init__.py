"""Which parts of a recipe for long tails earn their place: chosen on training data, judged on test data."""
