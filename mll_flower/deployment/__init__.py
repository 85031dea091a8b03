"""A network of real hubs: the file that describes it, its certificates, its sites, its status."""
