"""/v1/conversations, and the conversations that responses are made in."""
