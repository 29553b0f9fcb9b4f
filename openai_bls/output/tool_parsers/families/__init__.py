"""Model families, one module each: what tells their chat templates apart, how a call is read, what a grammar forces."""
