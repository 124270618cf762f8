"""What the scripts share: their command line, and parts that they run."""
