"""The suites of agents' frameworks, each run in an environment of its own.

    python -m scripts.suites run                     every framework, pinned and newest
    python -m scripts.suites run inspect --newest    one of them, at the newest version in range
    python -m scripts.suites run inspect -- -k user  what follows goes to pytest
    python -m scripts.suites make                    only make the environments
    python -m scripts.suites lock                    move what is newest, and all that they need
    python -m scripts.suites cost strands            what its adapter adds to a call
    python -m scripts.suites table                   the last complete run, for the documentation

The frameworks' requirements contradict one another, so none of them is installed beside the tests
of ringfence itself. `frameworks.py` has a row for each: its extra, the version that is pinned, its
examples. uv makes an environment below `.cache/suites` for the pinned version and one for the
newest that the extra's range allows (one for both if they are the same), with ringfence in it as
an editable install. What is in them, and which version is the newest, is in `locks`; what MCP's
conformance suite consists of is in `conformance`. So a run says the same on every day.

A run checks the types of the adapter, its tests and its examples against the framework as it is
installed there, and then runs `tests/adapters/NAME` and the examples. mypy and pytest by
themselves leave these files alone.
"""
