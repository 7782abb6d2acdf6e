"""The engine: trains clients and runs rounds, both in the simulator and on real clients."""
