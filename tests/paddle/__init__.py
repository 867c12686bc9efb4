"""Programs that run the same under Paddle 2.6.2 and under minigraph, and what Paddle gave.

A function of a module `*_programs.py` whose first parameter is `paddle` is a program: it gets the package, builds, runs
and returns values. CASES of such a module are programs, too: calls with arrays, as cases.py runs them. SLIPS says where
minigraph's result is another on purpose, NEAR where Paddle rounds more. `python -m tests.paddle.record`, where
paddlepaddle==2.6.2 is installed, writes recorded/*.json.
"""
