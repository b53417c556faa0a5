"""The fault campaign: real processes on a real backend, real faults, and every promise checked in what happened.

``python -m tests.proof campaign --backend tcp --minutes 30 --seed 7`` plays one *act* after the other on
one backend that lives through all of them. In an act some nodes join a run and hold their worlds, some clients read,
write and watch keys; then come the faults that the seed decides; then all is mended, a round must form, one member is
killed and the others must learn of it, and everything ends.

::

    records.py      what processes write down, a line each, as it happens
    node.py         a node's process: connect, join, hold, leave, join again
    client.py       a client's process: commits, reads and watches of one run's keys
    server.py       the TCP server's process
    processes.py    starts, kills and freezes them
    namespaces.py   processes behind a link of their own that can be cut, where the machine allows it
    disks.py        a small disk that can be full, and syncs that fail
    stage.py        what a backend is made of here: servers, endpoints, what can be done to it (stage_*.py)
    follower.py     every commit of a backend in its order, read without the library's client
    aof.py          the same for the value in a Redis, from its append-only file
    redis_scheme.py the scheme of the endpoint on that stage
    faults.py       what can happen to whom, drawn from the seed
    performer.py    who plays in an act, process after process
    recorder.py     gathers what happened
    act.py          one act: bring it up, disturb, mend, settle, end
    verdict.py      what must hold of what was written down
    command.py      the command's options
    report.py       act after act, and what is printed

Nothing here uses the wall clock: the monotonic clock of the machine is common to all its processes.
"""
