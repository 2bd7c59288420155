"""A file from its uses of pmap to its new text.

``spelled_out`` writes pmap with its options where a kept partial or a wrapper is used; ``plans``
picks a form for each use, or the reason why it is left; ``rewrite`` takes a file from its plans to
its new bytes; ``meshes`` names the meshes that they share and puts them above their first use;
``file_head`` puts imports and emitted functions at its top. ``shared_module`` is the module of
``--helpers`` that files take these from, ``import_paths`` how they import it; ``common_functions``
are those that several files have from a module which they import anyway.
"""
