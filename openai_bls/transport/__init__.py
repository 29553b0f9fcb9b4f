"""Connections between the Triton models: the exchange and gRPC. Imports engines, output and core."""
