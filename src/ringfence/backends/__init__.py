"""One module for each backend. `ringfence.registry` imports them when they are asked for."""
