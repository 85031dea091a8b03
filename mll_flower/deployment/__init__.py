"""A network of real hubs: the file that describes it, its certificates, its sites, its status.

A site is one hub or one worker, with the Flower processes that it consists of.
"""
