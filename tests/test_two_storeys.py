"""The library needs torch, numpy, jaxtyping, safetensors, huggingface_hub and lazy_loader, and no more."""

import subprocess
import sys

import pytest

USE_IT = """
import sys, tempfile
from pathlib import Path
import huggingface_hub, jaxtyping, lazy_loader, numpy, safetensors.torch, torch, torch._dynamo
theirs = set(sys.modules)
import dmb

data = dmb.data.array(torch.randint(4, (300, 6)))
process = dmb.BridgeProcess.from_marginals(data.marginals(), floor=0.1, schedule=dmb.Canonical())
bridge = dmb.MarkovBridge(process, dmb.Transformer(process, blocks=1, width=16))
list(dmb.train(bridge, data, cycles=1, score_steps=3, matrix_objective="joint", batch_size=8))
bridge.bound(data.test)
folder = Path(tempfile.mkdtemp())
bridge.write(folder)
dmb.Bridge.from_pretrained(folder).sample(2, calls=2)
ours = {name.partition(".")[0] for name in set(sys.modules) - theirs} - set(sys.stdlib_module_names)
allowed = {name.partition(".")[0] for name in theirs}
print("works", "dmb.app" in sys.modules, *sorted(ours - allowed))
"""


@pytest.mark.long
def test_the_library_trains_bounds_saves_and_samples_on_six_packages():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", USE_IT], capture_output=True, text=True)
    assert done.stdout.split() == ["works", "False", "dmb"], done.stdout + done.stderr
