"""The audit of a program while it runs: ``listener`` receives its calls, ``audited_calls`` counts
those of one function and audits each signature.
"""
