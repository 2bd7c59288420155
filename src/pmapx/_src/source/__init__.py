"""Other people's code: which files there are, and how they are read and written."""
