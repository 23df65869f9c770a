"""The first cases of the fuzz campaign; `make fuzz` runs them all."""

import os
import re
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).with_name("engine.py")


def test_spoilt_files_settings_and_command_lines_end_with_success_or_one_line():
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # its cases are forks, for which this process has too many threads
    campaign = subprocess.run([sys.executable, ENGINE, "15"], env=alone, capture_output=True, text=True, timeout=300)
    assert campaign.returncode == 0, campaign.stdout + campaign.stderr
    assert re.search(r"^15 cases: 0 failed", campaign.stdout, re.MULTILINE)
