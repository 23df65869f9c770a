"""The library needs torch, numpy, jaxtyping, safetensors and huggingface_hub; the application needs the rest."""

import subprocess
import sys

USE_IT = """
import sys, tempfile
from pathlib import Path
import torch
import dmb

data = dmb.data.array(torch.randint(4, (300, 6)))
process = dmb.BridgeProcess.from_marginals(data.marginals(), floor=0.1, schedule=dmb.Canonical())
bridge = dmb.Bridge(process, dmb.Transformer.for_process(process, blocks=1, width=16))
list(dmb.train(bridge, data, cycles=1, score_steps=3, matrix_objective="joint", batch_size=8))
bridge.bound(data.test)
folder = Path(tempfile.mkdtemp())
bridge.write(folder)
dmb.Bridge.from_pretrained(folder).sample(2, steps=2)
print(*sorted({name.partition(".")[0] for name in sys.modules if "dmb.app" not in name}), "dmb.app" in sys.modules)
"""

UPSTAIRS = {
    "rich", "tyro", "matplotlib", "tensorboard", "lightning_fabric", "torchmetrics", "vector_quantize_pytorch", "sklearn",
    "scipy", "pandas", "pyarrow", "tokenizers", "PIL",
}  # fmt: skip


def test_the_library_trains_bounds_saves_and_samples_without_what_the_application_needs():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", USE_IT], capture_output=True, text=True)
    *loaded, application = done.stdout.split()
    assert "torch" in loaded, done.stderr
    assert not UPSTAIRS & set(loaded)
    assert application == "False"
