"""The simulator: the product's own code on a simulated loop, network and disk."""
