"""The engine: trains clients and runs rounds. It serves the simulator and real clients alike."""
