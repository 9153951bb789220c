"""Messages about memory that frameworks, engines, drivers and systems print: their forms, by who prints them, and how they are found in a log."""
