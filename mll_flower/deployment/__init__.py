"""A network of real hubs: the file that describes it, its certificates, its processes."""
