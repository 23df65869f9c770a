"""What is minimised: score entropy, whole paths, and the bound with its error."""
