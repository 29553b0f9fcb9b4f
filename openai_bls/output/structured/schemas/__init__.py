"""JSON schemas: their reader, their parts and their keywords."""
