"""What ringfence's processes own on this machine, told by files, without a daemon.

A process that holds sandboxes is an *owner*. It holds a lock on a directory of its own, its
slot, for as long as it lives, and keeps one small file in it for each sandbox. The kernel frees
the lock at any death, so a slot with files and no lock is what a dead owner left: `reap` takes
the lock and removes the sandboxes. What a live owner holds is never touched.

Layout of the state directory (see `slots`)::

    owners/<n>/          slot n; a live owner holds a `flock` on the directory
    owners/<n>/<id>.json one sandbox
    stage/               an empty directory, for jails to start in
    loops/               mounted workspaces of the container backend, each beside its file
    hosts                what containers without a network have as /etc/hosts
    store                a random name, for the labels of what an engine keeps for us

What lies in an engine bears that name and the sandbox's id as labels. It is a dead owner's if no
live owner has noted the sandbox.

A process that ends in order leaves no slot behind. The state directory, `owners`, `stage` and
`store` stay.
"""

from .entries import Entry, is_running, process_start_time
from .leftovers import Found, held_slots, reap, scan
from .owners import BASE_UID, UIDS_PER_SLOT, Owner, owner
from .slots import SLOTS, stage_dir, state_dir, store_id

__all__ = (
    "BASE_UID",
    "SLOTS",
    "UIDS_PER_SLOT",
    "Entry",
    "Found",
    "Owner",
    "held_slots",
    "is_running",
    "owner",
    "process_start_time",
    "reap",
    "scan",
    "stage_dir",
    "state_dir",
    "store_id",
)
