"""What to do: the values and rules of a rendezvous, as pure functions.

Nothing here does I/O, reads a clock, logs or draws a random number; time and ids come in as arguments. The same code
runs in production, in the exhaustive model check and in the simulator.
"""
