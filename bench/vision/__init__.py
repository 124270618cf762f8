"""Vision: what training and judging of image networks share."""
