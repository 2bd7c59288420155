"""The page of ``pmapx migrate --report``."""
