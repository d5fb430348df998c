"""Five small programs, run twice: as people write them today, and with quiesce.

- `losing/` and `saved/`: the programs; each pair differs in a few lines.
- `cases.py`: where each program comes from, and what is at stake in it.
- `process.py`: runs a program in a process of its own and says what was observed.
- `judge.py`: turns what was observed into facts and a verdict.
- `words.py`: prints them.

Run it with `python -m examples.demo`, from the root of the project.
"""
