"""Tests of the sizes of steps."""
