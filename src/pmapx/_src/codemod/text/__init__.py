"""The text of a file: its tokens, names and imports, and the editor that forms write with."""
