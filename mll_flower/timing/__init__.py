"""Seconds for a simulated run: how long steps, uploads, downloads and mixings take."""
