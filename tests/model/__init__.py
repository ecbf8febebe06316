"""A second opinion on replication: a random walk over one partition, its replicas and its controller.

Nothing here imports the product. The modules, from the inside out: `rules` (one switch per protocol rule),
`state` (what disks, processes, wires and the controller remember), `invariants` (what must hold, as nouns),
`controller`, `storage`, `leader`, `follower` and `liveness` (what the specification says, in its order),
`steps` (what can happen next), `walk` (swarm, transcript, shrinking), `directed` (hand-written histories) and
`catalogue` (how each rule that is switched off gets caught).
"""
