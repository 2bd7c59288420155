"""What a watched program's functions were given and returned, written down and read again."""
