"""Known errors: one table of messages of libraries, drivers and systems, what each means, and its remedy.

`table.py` finds the known error in a text. `remedy.py` fills its remedy for this system and this way of installation.
The other files hold the entries by subject. Child processes import this package: standard library only.
"""
