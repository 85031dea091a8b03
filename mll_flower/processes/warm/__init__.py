"""A SuperNode whose ClientApps run in processes that stay, on Flower as it is.

Flower starts a new Python process for every message, which imports everything again. Here one
process per run answers the run's messages, one after another:

- `supernode` runs Flower's SuperNode, and `main_loop` its waits, which are shorter;
- `superexec` runs Flower's SuperExec with the `executor` that keeps the processes;
- `client_process` is such a process; `preload` is what it has imported before its first message;
- `watchdog` ends a SuperNode that no longer does its work, so that it can be started again;
- `flower_internals` names everything of Flower's that is replaced, and checks it at the start.
"""
