"""What must hold for a project to start: one ordered list, which `trucker check` and `trucker run` both walk.

    condition.py    what a condition is, and the findings it gives
    situation.py    what conditions look at: sources, destinations and their stored states, each asked for once
    listed.py       the list, and the walk
    state.py        the project's own folder
    source.py       the source: server, privileges, tables, publication, slot
    history.py      slot, change log and stored positions, held against each other
    destination.py  destinations: reachable, writable, what they store, their tables
    filled.py       destination tables that somebody has dropped or altered
    trucks.py       trucks, their rules and their SQL

A condition reads. It creates nothing, takes no lock that anything waits for, and may be asked while the project runs.
What a run verifies once more when it acts, because it may have changed since, it verifies by the same functions.

To add one: write a function that takes the `Situation` and yields `Finding`s, and put it into the list.
"""
