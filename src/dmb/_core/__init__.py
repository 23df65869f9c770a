"""What everything stands on: numerics, checks, random seeds, configuration, files."""
