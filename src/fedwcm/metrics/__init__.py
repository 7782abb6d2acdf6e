"""Metrics of a model: accuracy per class and per shot, neuron concentration, classifier angles."""
