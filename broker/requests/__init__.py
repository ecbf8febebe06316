"""One module per request: what a broker does with it, from the first check to the answer."""
