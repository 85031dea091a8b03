"""What a run leaves on disk, and what is made of it: plots, tables, an HTML report."""
