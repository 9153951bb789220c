"""The page and its HTTP API: thin, as the command line is. It reads a request, asks the rooms below, and sends what they say."""
