"""``pmapx.testing`` and the plugin for pytest.

``budget`` has the limits that a test sets, and compares an audited function with them. ``asserts``
are the functions of ``pmapx.testing``. The plugin (``pytest_plugin``) audits what a test calls,
with the listener of ``watched_calls``.
"""
