"""The path of a call.

``pmap`` is the transform and the path of a call from top to bottom. It uses ``options``,
``pmapped_function`` (what the user calls), ``program_cache``, ``program_builder`` and ``program``
(traced and compiled), ``inputs`` (placed on the mesh), ``multiprocess_call``, ``under_trace`` (a
call inside a trace), ``debug_nans``, ``stages`` (trace, lower, compile) and ``cache_info``.
"""
