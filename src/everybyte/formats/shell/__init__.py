"""A small shell that follows launch scripts without running anything.

It reads the part of bash in which launch scripts are written, and comes to the same words as bash does: variables and their forms (`${X:-d}`, `:=`, `:+`,
`#`, `%`, `/`, `^`, slices), arithmetic, arrays (with comments inside), quotes, splitting, brace expansion, `if`, `case`, loops, functions, here-documents,
`eval`, `source` and `bash -c`, pipes of small programs whose output follows from their input (`programs.py`). `dialects` reads PowerShell and cmd.

**Never**: a program is started, a file opened, a variable of the surrounding process read, an address fetched. Files that were handed over together are found
by name. Bounds: a mebibyte of script, 12,000 steps, 256 Ki characters a value, 60 levels of nesting.

**What only a run could tell** stays in the words as it is written (`$1`, `$(nproc)`, `$HOME`, `<your-model>`), with the reason:

- an unset variable or argument is empty where a condition or a default asks (`[ -z "$1" ]`, `${1:-x}`), and an unknown word elsewhere; `"$@"` vanishes;
- arithmetic with an unknown part is unknown;
- a program that is not worked out succeeds, and what it prints is unknown; a file is there;
- where a condition rests on any of these, the branch that ends the script (`exit`, `return`) is not taken, and the programs of the branch not taken are kept as
  alternatives, for scripts that start nothing else;
- what lies behind an `exit` that is reached counts as a branch not taken, since many scripts ask for arguments there;
- a loop whose condition is not known, or is always true, is passed through once, and no loop more than 500 times;
- functions that are never called are looked into the same way.

Every word knows the line that it comes from, also through variables that hold several lines of options. A backslash with a blank behind it ends the command, as
in bash, and is reported.
"""
