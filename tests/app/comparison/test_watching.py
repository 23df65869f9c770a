import io
import re

from rich.console import Console

from dmb.app.comparison import watching
from dmb.app.comparison.watching import Watch


def watched(planned, made_up, monkeypatch, **options):
    """What is shown while one of four runs is on its way, and one more has come to its end."""
    monkeypatch.setattr(watching, "EVERY", 0.0)
    console = Console(file=io.StringIO(), width=100, **options)
    mdlm, natural, *_ = jobs = planned().jobs()
    with Watch(console, jobs).shown() as watch:
        made_up(mdlm, validation=(3.25,), evaluated=0)
        watch.update([mdlm, natural])
        made_up(natural)
        watch.ended(natural, "done")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", console.file.getvalue())  # without colours and moves of the cursor


def test_a_terminal_shows_how_far_each_run_has_come(planned, made_up, monkeypatch):
    shown = watched(planned, made_up, monkeypatch, force_terminal=True)
    lines = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if "step" in line}
    assert lines["mdlm"].startswith("mdlm seed 0 step 5/10 validation 3.2500 bits")
    assert lines["mean-natural"].startswith("mean-natural seed 0 step 0/10")
    assert "0 of 4 runs" in shown


def test_elsewhere_there_is_one_line_for_each_run_that_ends(planned, made_up, monkeypatch):
    shown = watched(planned, made_up, monkeypatch)
    assert shown.startswith("mean-natural seed 0: done  (1 of 4 runs, ")
    assert shown.endswith(" left)\n")
    assert shown.count("\n") == 1
