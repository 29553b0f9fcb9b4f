"""Audio of requests: from encoded bytes to mono samples, within limits of bytes, seconds, time and memory."""
