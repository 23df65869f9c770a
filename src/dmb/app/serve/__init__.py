"""A page in the browser to play with the model of a run."""
