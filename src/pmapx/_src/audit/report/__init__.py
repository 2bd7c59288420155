"""The report of an audit: ``audit_report`` and ``scaling_table`` are its data, which
``merge_reports`` merges over processes; ``as_text`` and ``as_html`` render it, with ``formatting``.
"""
