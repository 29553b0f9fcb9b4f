"""Tools of the Responses API: functions, custom tools, namespaces and tool searches, which chat completions do not all
have."""
