"""Tests of a model that several processes share."""
