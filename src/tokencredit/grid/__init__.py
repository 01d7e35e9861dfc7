"""The grid on many machines: allocations, devices, what is done and what a cluster needs. Imports study/ alone."""
