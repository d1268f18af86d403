"""The command line `sqla-jobs`, on top of the operations; the extra `cli` has what it needs. See docs/cli.md.

Each command opens the app's worker (`apps`), calls operations in short transactions (`session`), and gives one document
to `terminal`, which prints it as tables or as JSON. What goes wrong is a `Stop`, with the exit code (`stops`).
"""
