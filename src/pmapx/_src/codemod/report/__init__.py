"""The page of ``pmapx migrate --report``: ``side_by_side`` aligns lines, ``page`` renders."""
