"""Operator tools: they observe, explain and change a cluster.

===========  ==============================================================================
``cli``      the command ``bookspark``
``console``  web pages of a live cluster
``why``      troubles, their causes, and the commands that end them
``changes``  changes of a live cluster: restarts, growing, shrinking, moves, new disks
``moving``   copies of ledgers from an Apache BookKeeper cluster
===========  ==============================================================================
"""
