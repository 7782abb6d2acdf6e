"""What every engine shares: the method interface, the local loop, aggregation, addressed randomness."""
