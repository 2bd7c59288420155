"""What is known of a program's pmapped functions from a run: proof_run runs the user's command with
``proof_listener`` inside, and ``evidence`` reads what it recorded."""
