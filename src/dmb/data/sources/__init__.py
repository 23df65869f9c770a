"""Where data come from: one data set or file format a module."""
