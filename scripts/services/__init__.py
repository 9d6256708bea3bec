"""The real services that tests run against, brought up on this machine and put down again.

    python -m scripts.services prepare kubernetes  begin what takes minutes, in the background
    python -m scripts.services up docker           start it unless it is there; say how long it took
    python -m scripts.services ready docker        0 if it answers a real request, else 1
    python -m scripts.services env docker          what a test or a shell needs to find it
    python -m scripts.services down docker         stop it, if it was started by `up`
    python -m scripts.services around -- COMMAND   run it, then put down what it brought up

Each service is one module. What it needs is installed or built if it can be, kept below
`.cache/services`, and found there the next time. A service that is given is used as it is and
never stopped: see the module for the variable that names it.
"""
