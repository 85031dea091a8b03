"""What a run leaves on disk, and what is made from it: plots, tables, an HTML report."""
