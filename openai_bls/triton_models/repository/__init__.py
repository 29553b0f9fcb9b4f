"""Model repository: its engines, the models around them, and the settings in each config.pbtxt."""
