"""Twins, a module or a folder for each family; the catalogue finds all of them."""
