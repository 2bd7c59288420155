"""What must be known of a use of pmap before a form is chosen.

``process_model`` reads from the program's words how it is run; ``nested_pmaps`` which pmap is met
inside which; ``repeated_maps`` whether a function is mapped again and again; ``leading_axes``
whether a pmap that is kept needs few options; ``map_calls`` which calls each map has; ``specs`` how
its arguments and results are sharded; ``axis_names`` the name of the mesh axis; ``copies`` which
calls stack copies of a tree, ``host_arrays`` which of them may change. ``assigned_values`` has what
a block assigns to a name, ``array_expressions`` what is one array, ``global_state`` what a
multi-process program keeps global between calls,
``connected_code`` which statements the values of the maps may reach.
"""
