"""Request bodies, errors and answers that the APIs share."""
