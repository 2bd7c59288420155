"""The page of ``pmapx migrate --report``: ``side_by_side`` aligns lines,
``line_counts`` counts them, ``page`` renders."""
