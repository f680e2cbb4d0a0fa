"""Reading a log as it grows: what lies between two offsets of it, in all of its lanes.

===============  ============================================================
``log_feed``     the union of a log's lanes, between two offsets
``lane_feed``    the same of one lane
``times``        times that choose rows, and the times of rows
``gaps``         what is known of rows that a reader passes unread
``lost_rows``    rows that were to be read and are gone
===============  ============================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.feeds.log_feed import LogFeed

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        feed = LogFeed(bookkeeper, "orders", b"", fail_on_data_loss=True)
        print(feed.earliest(), feed.newest())
"""
