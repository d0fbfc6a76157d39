"""Metrics: what there is (catalog), how it is counted (histogram, labels), and the observer that counts."""
