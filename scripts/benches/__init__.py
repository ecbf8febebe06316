"""What `scripts/bench` measures: one module per part of the product, each with its references."""
