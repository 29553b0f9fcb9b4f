"""Engine, and the life of a request in it. Imports every other folder of the embedded engine."""
