"""The interfaces and types that methods, losses and engines share, and addressed randomness."""
