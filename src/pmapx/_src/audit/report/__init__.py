"""The report of an audit.

``audit_report``, ``scaling_table`` and ``what_if_table`` are its data. ``as_text`` renders it, and
``baseline`` compares it with an earlier one.
"""
