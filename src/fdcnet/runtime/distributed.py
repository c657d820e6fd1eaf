"""Several processes that train one model together. `torchrun` starts them; one process alone needs none of this.

Each process takes its share of every batch. Gradients, losses and batch statistics are summed over all processes, so
the result is that of one process with the same batches, up to rounding.
"""

import atexit
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after joining, its default arguments would keep the connection open
from torch import Tensor

from fdcnet.errors import UserError, count

T = TypeVar("T")
BUCKET = 6_000_000  # gradients that are sent together, 24 MB, as in DistributedDataParallel
PATIENCE = timedelta(hours=2)  # others wait while the first process decodes photos or writes the model


class LostProcess(RuntimeError):
    """Another process of the run is gone."""


@contextlib.contextmanager
def noticing_losses() -> Iterator[None]:
    """Inside, the errors of a broken connection become `LostProcess`."""
    try:
        yield
    except RuntimeError as error:
        if num_processes() == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error).lower()):
            raise
        raise LostProcess(
            "Another process of this run has failed or was stopped.\n"
            "Its own message says why. Then run the same command with --resume to continue from the last checkpoint."
        ) from error


def started_by_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" in os.environ


def join_processes(device: torch.device) -> torch.device:
    """Connect to the other processes. -> the device of this one"""
    local = int(os.environ["LOCAL_RANK"])
    own_gpu = device.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    if device.type == "cuda":
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        # NCCL refuses two processes on one GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo", timeout=PATIENCE)
        atexit.register(_leave_processes)
    return device


def _leave_processes() -> None:
    """Otherwise the threads of the connection may crash the process while it ends."""
    with contextlib.suppress(Exception):  # of a connection that is already broken
        dist.destroy_process_group()


def num_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """0-based"""
    return dist.get_rank() if dist.is_initialized() else 0


def own_part() -> tuple[int, int]:
    """(i, n): this process takes the i-th of n parts of each batch."""
    return rank(), num_processes()


def is_first() -> bool:
    """Whether this process writes files and messages."""
    return rank() == 0


def refuse_too_many_processes(num_photos: int) -> None:
    """Refuse batches with fewer photos than processes."""
    if num_photos < num_processes():
        raise UserError(
            f"A batch of {count(num_photos, 'photo')} cannot be shared by {num_processes()} processes.",
            "Start fewer processes, or raise train.batch_size.",
        )


def wait_for_all() -> None:
    if num_processes() > 1:
        dist.barrier()


def on_first(call: Callable[[], T]) -> T:
    """Call it in the first process only, and return its result in all of them."""
    if num_processes() == 1:
        return call()
    result = [call() if is_first() else None]
    dist.broadcast_object_list(result, src=0)
    return result[0]  # type: ignore[return-value]


@contextlib.contextmanager
def first_of_machine_goes_ahead() -> Iterator[None]:
    """The others of a machine enter after its first process has left, and find what it has left on disk."""
    waits = num_processes() > 1 and int(os.environ.get("LOCAL_RANK", 0)) > 0
    if waits:
        wait_for_all()
    yield
    if not waits:
        wait_for_all()


def is_shared(num: int) -> bool:
    """Whether there are several processes, and something to do for each of them."""
    return 1 < num_processes() <= num


def share_of(process: int, num: int) -> range:
    """The part of `num` things that a process takes. Few things are not shared."""
    if not is_shared(num):
        return range(num)
    return range(num * process // num_processes(), num * (process + 1) // num_processes())


def own_share(num: int) -> range:
    return share_of(rank(), num)


def joined_shares(own: Sequence[Tensor], num: int) -> Tensor:
    """The rows of all processes, in order, where each has computed its `own_share` of `num`, in several parts."""
    rows = torch.cat(list(own))
    if not is_shared(num):
        copy_from_first([rows])
        return rows
    everything = rows.new_empty((num, *rows.shape[1:]))
    for sender in range(num_processes()):
        share = share_of(sender, num)
        part = rows if sender == rank() else everything[share.start : share.stop]
        dist.broadcast(part, src=sender)
        everything[share.start : share.stop] = part
    return everything


def joined_objects(own: T) -> list[T]:
    """The objects of all processes, in order."""
    objects: list[T] = [own] * num_processes()
    dist.all_gather_object(objects, own)
    return objects


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite these tensors with those of the first process."""
    if num_processes() > 1:
        with torch.no_grad():
            for tensor in tensors:
                received = tensor.detach().contiguous()
                dist.broadcast(received, src=0)
                tensor.copy_(received)


@contextlib.contextmanager
def summed_gradients(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Sum the gradients of the backward pass inside over all processes.

    A bucket of gradients is sent as soon as it is complete, while the backward pass goes on. Buckets are sent in the
    same order by all processes.
    """
    buckets = _buckets([parameter for parameter in parameters if parameter.requires_grad])
    missing = [len(bucket) for bucket in buckets]
    bucket_of = {id(parameter): number for number, bucket in enumerate(buckets) for parameter in bucket}
    sent: list[Callable[[], None]] = []

    def completed(parameter: Tensor) -> None:
        missing[bucket_of[id(parameter)]] -= 1
        while len(sent) < len(buckets) and not missing[len(sent)]:
            sent.append(_sum_in_background(buckets[len(sent)]))

    hooks = [parameter.register_post_accumulate_grad_hook(completed) for bucket in buckets for parameter in bucket]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for bucket in buckets[len(sent) :]:  # with parameters that this step does not use
        sent.append(_sum_in_background(bucket))
    for wait in sent:
        wait()


def _buckets(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """In about the order in which a backward pass completes the gradients."""
    buckets: list[list[Tensor]] = [[]]
    for parameter in reversed(parameters):
        if sum(other.numel() for other in buckets[-1]) >= BUCKET:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def _sum_in_background(parameters: Sequence[Tensor]) -> Callable[[], None]:
    """-> what waits for the sums and puts them in the place of the gradients"""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return lambda: None
    flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    work = dist.all_reduce(flat, async_op=True)

    def wait() -> None:
        work.wait()
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return wait


def sum_over_processes(values: Tensor) -> Tensor:
    total = values.detach().clone()
    dist.all_reduce(total)
    return total
