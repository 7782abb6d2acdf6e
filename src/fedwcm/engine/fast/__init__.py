"""Fast paths of the engine, each equal to the general path up to rounding. Only `engine` imports this package."""
