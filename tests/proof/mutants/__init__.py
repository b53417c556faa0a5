"""Mutants of the package, made by rule: each is one small change of the source, and a test must fail for it.

    python -m tests.proof.mutants                              # all of them: hours
    python -m tests.proof.mutants --module core/               # of one part
    python -m tests.proof.mutants --sample 100 --seed 7        # some of them

``generate`` makes them, ``running`` runs them. ``equivalent.txt`` lists those that change nothing that anybody can see,
each with the reason. Bugs that somebody thought of, each with the test that catches it, are in
``tests/proof/mutations.py``.
"""
