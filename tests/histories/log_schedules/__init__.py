"""A log's writers, readers and cleaners under schedules that a seed draws: the code that ships, over a cluster in memory.

============  ==========================================================================================
``turns``     who goes on: one actor at a time, and which one is drawn at each call to the cluster
``cluster``   ledgers and records in memory, with what may go wrong at each call
``handles``   a ledger, and those who write and read it
``actors``    batch writes, producers, and what cleans up
``readers``   readers, with places that outlive them
``queries``   streaming queries, with checkpoints that are set back, and who follows them
``offloads``  offloads to tables in memory, by the steps that ship
``groups``    groups of readers with saved places
``history``   what actors were told, and the laws that it must keep
``truth``     what the log has in truth, and what may be taken from it
``stand_ins`` what takes the place of clocks, threads and bounds
``run``       one schedule, from the first actor until all is read once more without faults
============  ==========================================================================================
"""
