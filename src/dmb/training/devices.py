"""The engine: which devices, how many processes, in what precision.

Several devices and other precisions are handled by `lightning-fabric`. One device in full precision does not need it,
and saves the seconds of importing it.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group

from dmb._core.seeding import seed_of
from dmb.training.settings import Accelerator, Precision, Strategy


class OneDevice:
    """The methods of an engine that training uses, on one device in full precision."""

    world_size, global_rank, is_global_zero = 1, 0, True
    strategy = None

    def __init__(self, device: str):
        self.device = torch.device(device)

    def setup_module(self, module: nn.Module) -> Any:
        return module.to(self.device)

    def setup_optimizers(self, optimiser: torch.optim.Optimizer) -> Any:
        return optimiser

    def no_backward_sync(self, module: Any, enabled: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip_gradients(self, module: Any, optimiser: Any, max_norm: float, error_if_nonfinite: bool) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return value

    def all_reduce(self, value: Tensor, reduce_op: str) -> Tensor:
        return value

    def all_gather(self, value: Tensor) -> Tensor:
        return value[None]

    def barrier(self) -> None:
        pass


if TYPE_CHECKING:  # seconds to import, and only several devices need it
    import lightning_fabric

    Engine = OneDevice | lightning_fabric.Fabric
else:
    Engine = Any


def engine(
    *,
    accelerator: Accelerator = "auto",
    devices: int = 1,
    nodes: int = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
) -> Engine:
    """A launched engine. Under `torchrun` or SLURM it joins the existing processes; otherwise it starts them itself.

    Args:
        accelerator: `cpu`, `cuda`, or `auto`: a GPU if there is one. (Times are float64, which `mps` does not support.)
        devices: number of processes per machine.
        nodes: number of machines.
        strategy: `ddp` copies the network to every process, `fsdp` splits it among them; `auto` is `ddp` for more than
            one process.
        precision: precision of the network; the loss is always computed in float32 or better.
    """
    if devices < 1 or nodes < 1:
        raise ValueError(f"devices and nodes must be at least 1, got {devices} and {nodes}")
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    launched = os.environ.get("WORLD_SIZE") or ("1" if interactive else os.environ.get("SLURM_NTASKS", "1"))
    if devices * nodes == int(launched) == 1 and strategy == "auto" and precision == "32-true":
        return OneDevice(device(accelerator))
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    except ModuleNotFoundError as error:
        raise ValueError(
            "several processes, and precisions other than 32-true, need lightning-fabric: pip install lightning-fabric"
        ) from error

    chosen: str | ModelParallelStrategy = strategy
    if strategy == "fsdp":
        chosen = ModelParallelStrategy(_shard, data_parallel_size=devices * nodes, tensor_parallel_size=1)
        # our losses never write into the network's output, which is what it warns of
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    fabric = Fabric(
        accelerator=device(accelerator), devices=devices, num_nodes=nodes, strategy=chosen, precision=precision
    )
    fabric.launch()
    return fabric


def device(accelerator: Accelerator = "auto") -> str:
    """`cuda` or `cpu`."""
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("accelerator must be cpu: no GPU was found")
    return "cpu" if accelerator == "cpu" or not torch.cuda.is_available() else "cuda"


def skips_bad_steps(fabric: Engine) -> bool:
    """Whether the engine scales losses to fit float16, and itself leaves out steps whose gradient overflows."""
    return fabric.strategy is not None and getattr(fabric.strategy.precision, "scaler", None) is not None


def averaged(fabric: Engine, value: Tensor) -> Tensor:
    """The mean of `value` over all processes."""
    return value if fabric.world_size == 1 else cast(Tensor, fabric.all_reduce(value, reduce_op="mean"))


def gathered(fabric: Engine, values: Tensor) -> Tensor:
    """The values of all processes, one after the other; as many on each."""
    return values if fabric.world_size == 1 else cast(Tensor, fabric.all_gather(values)).flatten(0, 1)


@contextmanager
def seeded_globally(fabric: Engine, seed: int, *key: int | str) -> Iterator[None]:
    """Seed torch's global generators, from which dropout and quantisers draw, for a while; then they are as before.

    Only those of devices in use: for each other kind of device `torch.manual_seed` formats the stack and keeps it for
    good, which takes milliseconds per step and ever more memory.
    """
    number, on_gpu = seed_of(seed, *key, fabric.global_rank), fabric.device.type == "cuda"
    with torch.random.fork_rng(devices=[fabric.device] if on_gpu else []):
        torch.default_generator.manual_seed(number)
        if on_gpu:
            torch.cuda.manual_seed_all(number)
        yield


def exit_now(code: int) -> NoReturn:
    """End this process, one of several, without the interpreter's own farewell.

    The threads of a process group outlive `destroy_process_group` if anything still knows the group, as torch's own
    caches do after FSDP; a thread that asks for a Python object while the interpreter ends aborts the process.
    """
    destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _shard(network: nn.Module, mesh: Any) -> nn.Module:
    """Share out every block's parameters, then the rest: a block is gathered only while it computes."""
    from torch.distributed.fsdp import fully_shard

    for block in getattr(network, "blocks", ()):
        fully_shard(block, mesh=mesh["data_parallel"])
    fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=True)  # the average never sees a backward
    return network
