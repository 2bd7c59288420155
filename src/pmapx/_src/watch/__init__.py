"""The one way to watch a running program, for audit, for verify and for migrate's proof.

The user's command runs unchanged, in separate processes (``command``), for verify and migrate in a
copy of its tree (``run_in_copy``, ``tree_copies``). In each of them Python
imports ``site/sitecustomize`` first, which waits until the program has imported JAX and then calls
hooks: one installs the legacy mode, and that of a tool attaches a listener (``transforms``), which
receives the functions that the program makes with JAX, their calls, and the
indexing of its arrays. ``frames`` locates these in the program's source, and ``record_files``
carries what each process found to the parent. ``run_notebook`` runs a notebook as a program.
"""
