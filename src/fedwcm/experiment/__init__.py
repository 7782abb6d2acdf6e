"""One run: assembled from its configuration, started or resumed, recorded in its folder."""
