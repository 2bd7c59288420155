"""An abstract interpreter of Python: what is known of values in code that is read, not run."""
