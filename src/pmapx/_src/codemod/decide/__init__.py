"""What becomes of each use of pmap, and why.

``sites`` finds the uses; ``process_model`` reads from its words how the program is run;
``nested_pmaps``, ``repeated_maps``, ``specs`` and ``axis_names`` answer what a form asks;
``plans`` picks the form.
"""
