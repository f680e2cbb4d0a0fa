"""A bookie's process, and its second port.

==============  ====================================================================
``daemon``      directories, lease, start and stop of a bookie's process
``bookkeeper``  Apache BookKeeper's wire protocol on a second port of a bookie
==============  ====================================================================
"""
