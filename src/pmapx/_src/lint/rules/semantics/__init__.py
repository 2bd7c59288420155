"""Rules PMX54x and 55x: axes, donation, and what is wrong after a migration by hand."""
