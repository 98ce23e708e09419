# SPDX-FileCopyrightText: 2026 The lockstep authors
# SPDX-License-Identifier: Apache-2.0
"""The time of a training step in PyTorch, for the same shapes as ours, in every mode that could be its best.

Prints one line of JSON for each configuration: what was measured, or why it was not. Runs on one machine, and needs PyTorch
and a GPU. Configurations run in a few families, each in processes of its own, so that one that hangs costs its family only.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import itertools
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass(frozen=True)
class Work:
    widths: tuple  # fully connected layers, ReLU between them, cross entropy over the last
    samples: int  # a GPU
    precision: str  # f32, tf32, or bf16: autocast from f32 parameters
    pinned: bool = False  # batches come from pinned host memory instead of lying on the devices
    buckets_mb: tuple = (25,)


LAYERS = (4096,) * 9
BUCKETS = (25, 64, 128, 1000)
WORKS = {
    "simplenet-64": Work((784, 128, 10), 64, "f32"),
    "mlp4096-1024": Work(LAYERS, 1024, "bf16", buckets_mb=BUCKETS),
    "mlp4096-8192": Work(LAYERS, 8192, "bf16", buckets_mb=BUCKETS),
    "mlp4096-8192-tf32": Work(LAYERS, 8192, "tf32", buckets_mb=BUCKETS),
    "mlp4096-8192-f32": Work(LAYERS, 8192, "f32", buckets_mb=BUCKETS),
    "mlp4096-8192-pinned": Work(LAYERS, 8192, "bf16", pinned=True, buckets_mb=BUCKETS),
}

# PyTorch's recipe for a captured step under DDP asks for at least 11 eager ones before it.
WARM_UP_STEPS = 12
BLOCKS = 15
BLOCK_SECONDS = 0.02
LEAST_BLOCK_STEPS = 10
# What a configuration needs at the least, called or compiled; and a family, to start its processes and to measure one.
LEAST_SECONDS = {False: 4, True: 20}
LEAST_FAMILY_SECONDS = 15


# ---- what to measure ---------------------------------------------------------------------------------------------------------


def families(work, gpus):
    """[(how many processes, configurations)], what is most likely the best first."""

    def one(**settings):
        return {"mode": "one GPU", "gpus": 1, "settings": settings}

    def ddp(**settings):
        return {"mode": "DDP", "gpus": gpus, "settings": settings}

    several = max(gpus, 2)
    parallel = [
        {"mode": "DataParallel", "gpus": several, "settings": {"loss": where}} for where in ("on each GPU", "on the first GPU")
    ]
    plain = [one(compiled=False, captured=captured) for captured in (False, True)]
    compiled = [one(compiled=True, captured=captured) for captured in (True, False)]
    called, replayed, compiled_ddp = (
        [
            {**ddp(compiled=compiled, captured=captured, bucket_cap_mb=cap), "gpus": several}
            for cap in work.buckets_mb
            for captured in captures
        ]
        for compiled, captures in ((False, [False]), (False, [True]), (True, [True, False]))
    )
    if gpus < 2:
        return [(1, plain), (1, compiled), (0, [*parallel, *called, *replayed, *compiled_ddp])]
    # The default size and those after it in turn: what time runs out on is the finest of the sweep.
    mixed = [c for pair in itertools.zip_longest(replayed, called) for c in pair if c]
    return [(1, [*plain, *parallel]), (gpus, mixed), (gpus, compiled_ddp), (1, compiled)]


# ---- one process -------------------------------------------------------------------------------------------------------------


class Ranks:
    """What the processes of one family tell each other beside training. Goes through a file, so that it works whatever state
    the GPUs are in."""

    def __init__(self, rank, size, store):
        self.rank, self.size, self.store = rank, size, store
        self.configuration = 0

    def from_first(self, what, value):
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        key = f"{self.configuration}/{what}"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
            return value
        return json.loads(self.store.get(key))

    def of_all(self, what, value):
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        key = f"{self.configuration}/{what}/"
        self.store.set(f"{key}{self.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{key}{rank}")) for rank in range(self.size)]

    def meet(self, where):
        self.of_all(where, None)


def make_model(work, returns_loss):
    """Autocast is entered in forward: the threads of DataParallel do not inherit it. Loss and accuracy of the types are as
    autocast has them: products in bf16, loss in f32."""
    import torch
    from torch import nn

    class Perceptron(nn.Module):
        def __init__(self):
            super().__init__()
            layers = []
            for width, following in itertools.pairwise(work.widths):
                layers += [nn.Linear(width, following), nn.ReLU(inplace=True)]
            self.layers = nn.Sequential(*layers[:-1])

        def forward(self, images, labels):
            # Every weight is used once, so there is nothing to cache.
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=work.precision == "bf16", cache_enabled=False):
                scores = self.layers(images)
                return nn.functional.cross_entropy(scores, labels) if returns_loss else scores

    return Perceptron()


def random_batches(work, samples, device, count):
    import torch

    generator = torch.Generator(device).manual_seed(1 + device.index)
    return [
        (
            torch.randn(samples, work.widths[0], device=device, generator=generator),
            torch.randint(work.widths[-1], (samples,), device=device, generator=generator),
        )
        for _ in range(count)
    ]


@functools.lru_cache(1)
def host_batches(work, samples, device, count):
    return [tuple(part.cpu().pin_memory() for part in batch) for batch in random_batches(work, samples, device, count)]


class Slots:
    """Two batches on the device, used in turn. They stay as they are; or, from pinned memory, each is filled on a stream of its
    own while the step on the other runs."""

    HOST_BATCHES = 4

    def __init__(self, work, samples, device):
        import torch

        self.torch = torch
        self.host = []
        if work.pinned:
            self.host = host_batches(work, samples, device, self.HOST_BATCHES)
            self.batches = [tuple(torch.empty_like(part, device=device) for part in self.host[0]) for _ in range(2)]
            self.copying = torch.cuda.Stream(device)
            self.copied = [torch.cuda.Event() for _ in range(2)]
            self.used = [torch.cuda.Event() for _ in range(2)]
            self.filled = 0
            for slot in range(2):  # so that warm-up and capture find numbers
                self.fill(slot)
            torch.cuda.synchronize(device)
        else:
            self.batches = random_batches(work, samples, device, 2)
        self.bytes = sum(part.nbytes for one in self.batches for part in one)

    def fill(self, slot):
        with self.torch.cuda.stream(self.copying):
            self.copying.wait_event(self.used[slot])
            for to, source in zip(self.batches[slot], self.host[self.filled % len(self.host)]):
                to.copy_(source, non_blocking=True)
            self.copied[slot].record(self.copying)
        self.filled += 1

    @contextlib.contextmanager
    def turn(self, number):
        """Within, the slot of step `number` may be used on the current stream."""
        slot = number % 2
        if not self.host:
            yield slot
            return
        current = self.torch.cuda.current_stream()
        self.fill(1 - slot)
        current.wait_event(self.copied[slot])
        yield slot
        self.used[slot].record(current)


def build(work, configuration, ranks, device, samples):
    """Returns (run, slots, losses): `run(slot)` enqueues a step on the current stream, and `losses[slot]` is its loss."""
    import torch

    settings = configuration["settings"]
    captured = settings.get("captured", False)
    torch.manual_seed(0)
    with torch.device(device):
        model = make_model(work, settings.get("loss") != "on the first GPU")
    if configuration["mode"] == "DDP":
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(
            model,
            device_ids=[device.index],
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=True,
            bucket_cap_mb=settings["bucket_cap_mb"],
        )
    elif configuration["mode"] == "DataParallel":
        model = torch.nn.DataParallel(model, device_ids=list(range(configuration["gpus"])))
    # The rate of bench/trainer/cuda_step_bench.cu, which says why.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True, capturable=captured)
    if settings.get("compiled"):
        model = torch.compile(model, dynamic=False)
    slots = Slots(work, samples, device)
    losses = [None, None]

    if settings.get("loss") == "on the first GPU":

        def loss_of(images, labels):
            return torch.nn.functional.cross_entropy(model(images, labels).float(), labels)

    elif configuration["mode"] == "DataParallel":

        def loss_of(images, labels):
            return model(images, labels).mean()

    else:
        loss_of = model

    def step(slot):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*slots.batches[slot])
        loss.backward()
        optimizer.step()
        losses[slot] = loss.detach()

    if not captured:
        return step, slots, losses

    stream = torch.cuda.current_stream()
    for number in range(WARM_UP_STEPS):
        with slots.turn(number) as slot:
            step(slot)
    torch.cuda.synchronize(device)
    ranks.meet("warm")
    graphs = []
    for slot in range(2):
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=graphs[0].pool() if graphs else None, stream=stream, capture_error_mode="thread_local"
        ):
            step(slot)
        graphs.append(graph)
    torch.cuda.synchronize(device)
    ranks.meet("captured")

    def replay(slot):
        graphs[slot].replay()

    return replay, slots, losses


def measure(work, configuration, ranks, device, limit):
    """The line of one configuration, the same on every rank."""
    import torch

    if configuration["settings"].get("compiled"):
        torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    for index in range(torch.cuda.device_count()) if configuration["mode"] == "DataParallel" else [device.index]:
        torch.cuda.reset_peak_memory_stats(index)
    samples = work.samples * (configuration["gpus"] if configuration["mode"] == "DataParallel" else 1)

    # Captured steps need a stream that is not the default one, and DDP made on it. The others may have it as well.
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        run, slots, losses = build(work, configuration, ranks, device, samples)
        done = 0

        def steps(count):
            nonlocal done
            for _ in range(count):
                with slots.turn(done) as slot:
                    run(slot)
                done += 1

        def timed(count):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            steps(count)
            last.record()
            return first, last, count

        def milliseconds(block):
            first, last, count = block
            return first.elapsed_time(last) / count

        steps(WARM_UP_STEPS)
        torch.cuda.synchronize(device)
        trial = timed(LEAST_BLOCK_STEPS)
        torch.cuda.synchronize(device)
        estimate = milliseconds(trial) / 1000
        count = max(LEAST_BLOCK_STEPS, math.ceil(BLOCK_SECONDS / estimate))
        blocks = min(BLOCKS, max(3, int(limit / (estimate * count))))
        count, blocks = ranks.from_first("length", [count, blocks])
        timings = [timed(count) for _ in range(blocks)]
        torch.cuda.synchronize(device)
        times = [milliseconds(block) for block in timings]

    quarter, median, three_quarters = statistics.quantiles(times, n=4)
    mine = {
        "median_ms": median,
        "spread": (three_quarters - quarter) / median,
        "loss": losses[0].float().mean().item(),
        "peak_bytes": torch.cuda.max_memory_allocated(device) - slots.bytes,
    }
    if not math.isfinite(mine["loss"]):
        raise ArithmeticError(f"the loss is {mine['loss']}")
    slowest = max(ranks.of_all("times", mine), key=lambda one: one["median_ms"])
    return {
        "median_ms": round(slowest["median_ms"], 5),
        "spread": round(slowest["spread"], 4),
        "iterations": count * blocks,
        "peak_bytes": slowest["peak_bytes"],
        "loss": slowest["loss"],
    }


def work_through(work, configurations, rank, size, folder, deadline):
    """Measures the configurations of one family. Rank 0 prints."""
    import torch

    torch.set_float32_matmul_precision("high" if work.precision == "tf32" else "highest")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    ranks = Ranks(rank, size, None)
    if size > 1:
        from datetime import timedelta

        import torch.distributed as distributed

        store = distributed.FileStore(str(folder / "store"), size)
        distributed.init_process_group(
            "nccl", store=distributed.PrefixStore("group", store), rank=rank, world_size=size, device_id=device
        )
        store.set_timeout(timedelta(seconds=120))
        ranks.store = distributed.PrefixStore("beside", store)

    agreed = True
    for ranks.configuration, configuration in enumerate(configurations):
        left = ranks.from_first("time", deadline - time.time())
        line = {"skipped": "no time was left for it"}
        if not agreed:
            line = {"skipped": "the one before it ended on some ranks only"}
        elif left > LEAST_SECONDS[configuration["settings"].get("compiled", False)]:
            try:
                line = measure(work, configuration, ranks, device, limit=min(3.0, left / 4))
                reason = None
            except Exception as error:  # a rank that fails says so; one that hangs is ended from outside
                reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            reasons = [r for r in ranks.of_all("outcome", reason) if r]
            agreed = len(reasons) in (0, size)
            if reasons:
                line = {"failed": reasons[0]}
        if rank == 0:
            versions = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
            print(json.dumps({**configuration, **line, **versions}), flush=True)
    ranks.meet("end")
    sys.stdout.flush()
    os._exit(0)  # graphs hold communicators, and taking them down in order is nothing to wait for


# ---- all processes -----------------------------------------------------------------------------------------------------------


def run_family(name, processes, configurations, deadline):
    """The lines of a family. One that was not measured says why."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as files:
        output, errors = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
        started = []
        for rank in range(processes):
            job = {
                "work": name,
                "configurations": configurations,
                "rank": rank,
                "size": processes,
                "folder": folder,
                "deadline": deadline,
            }
            started.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--job", json.dumps(job)],
                    stdout=output if rank == 0 else subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
                    start_new_session=True,  # so that the compilers it starts end with it
                )
            )
        ended = "it ended early"
        last = deadline + 9  # they stop by themselves before the deadline, unless they hang
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started):
                last = min(last, time.time() + 3)  # one failed, and the others wait for it
            if time.time() > last:
                ended = "it did not come back in time"
                break
            time.sleep(0.05)
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        for text in output.read().splitlines():
            with contextlib.suppress(ValueError):  # what libraries print
                line = json.loads(text)
                if isinstance(line, dict) and "mode" in line:
                    lines.append(line)
        if len(lines) < len(configurations):
            errors.seek(0)
            said = [text for text in errors.read().splitlines() if text.strip()]
            ended += f": {said[-1].strip()[:300]}" if said else ""
            sys.stderr.write("\n".join(said[-20:]) + "\n" if said else "")
    first, *others = configurations[len(lines) :] or [None]
    if first:
        lines.append({**first, "failed": ended})
        lines += [{**other, "skipped": "the one before it did not end well"} for other in others]
    return lines


def count_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return 0
    return sum(line.startswith("GPU ") for line in listed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS)
    parser.add_argument("--seconds", type=float, default=90, help="for everything; what does not fit is named (default: 90)")
    parser.add_argument("--gpus", type=int, help="how many to use (default: all)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job = json.loads(given.job)
        work_through(
            WORKS[job["work"]],
            job["configurations"],
            job["rank"],
            job["size"],
            pathlib.Path(job["folder"]),
            job["deadline"],
        )
        return
    if not given.work:
        parser.error("--work is needed")

    work = WORKS[given.work]
    gpus = count_gpus() if given.gpus is None else given.gpus
    end = time.time() + given.seconds
    for processes, configurations in families(work, gpus):
        left = end - time.time()
        if not importlib.util.find_spec("torch"):
            lines = [{**one, "skipped": "PyTorch is not installed"} for one in configurations]
        elif gpus < 1:
            lines = [{**one, "skipped": "needs a GPU, and none is there"} for one in configurations]
        elif processes == 0:
            lines = [{**one, "skipped": f"needs 2 GPUs, found {gpus}"} for one in configurations]
        elif left < LEAST_FAMILY_SECONDS:
            lines = [{**one, "skipped": "no time was left for it"} for one in configurations]
        else:
            lines = run_family(given.work, processes, configurations, end - 10)
        for line in lines:
            print(json.dumps({"work": given.work, **line}), flush=True)


if __name__ == "__main__":
    main()
