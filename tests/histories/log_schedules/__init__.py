"""A log's writers, readers and cleaners under schedules drawn from a seed: the real code over a cluster in memory.

============  ==========================================================================================
``turns``     scheduling: one actor at a time, drawn anew at each call to the cluster
``cluster``   ledgers and records in memory, with faults at each call
``handles``   a ledger, and the handles of its writer and readers
``actors``    batch writes, producers, and cleaners
``readers``   readers with places that outlive them
``queries``   streaming queries, with checkpoints that are set back, and their followers
``offloads``  offloads to tables in memory, by the real steps
``groups``    groups of readers with saved places
``history``   answers and rows that actors got, and the laws for them
``truth``     the true content of the log, and the laws for removals
``stand_ins`` replacements for clocks, threads and bounds
``run``       one schedule, from the first actor until everything is read once more without faults
============  ==========================================================================================
"""
