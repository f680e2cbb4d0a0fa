"""Tools of an operator: they look at a cluster, explain it and change it.

===========  ==============================================================================
``cli``      the command ``bookspark``
``console``  web pages of a live cluster
``why``      troubles, their causes, and the commands that end them
``changes``  changes of a live cluster: restarts, growing, shrinking, moves, new disks
``moving``   copies of ledgers from a cluster of Apache BookKeeper
===========  ==============================================================================
"""
