"""What an audit found, as data, as text and as a page."""
