"""The text of a compiled program: its instructions, collectives, dataflow and donations."""
