"""All Redis commands and scripts that read or change the schedule."""
