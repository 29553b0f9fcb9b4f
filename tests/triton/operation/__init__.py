"""A real server as those who run it see it: start, stop, load, observation, clients, commands."""
