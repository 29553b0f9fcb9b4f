"""Programs that read an event stream as other people's clients do: `PROGRAM URL BODY` prints the data of each event."""
