"""All Redis commands and Lua scripts that read or change the schedule."""
