"""Fast paths of the engine, each equal to the plain path up to rounding. Nothing outside `engine` imports this."""
