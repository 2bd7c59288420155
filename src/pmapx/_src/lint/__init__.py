"""``pmapx check``: rules on the facts that the analysis recorded."""
