"""Mutation testing of the modules that protect data.

A mutant is the source with one small bug in it. A test that fails kills the mutant; a mutant that survives is a bug
that no test notices. `python -m tests.mutation --help` lists the options.

Why not mutmut or Cosmic Ray: both change operators and constants of single expressions. The bugs that passed our tests
were wrong connections between parts: the wrong offset as an argument, two calls in the wrong order, a sync that is left
out. Neither tool changes Cython sources, and both run the same test command for every mutant, where a large suite needs
the tests that reach the changed function. Cosmic Ray accepts operators of others, but then contributes only its queue.
"""
