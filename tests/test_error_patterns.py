"""Causes found in error texts, and in the kernel's counters after a child was killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.child.handle import ChildProcess
from backend.common import error_patterns
from backend.common.errors import DeviceLost, OutOfMemory, WorkerCrashed
from backend.common.system import oom_kills
from backend.scheduling.worker import classify_exit


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "HIP out of memory. Tried to allocate 20.00 MiB",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 512 MiB on device 0: cudaMalloc failed: out of memory",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 1098635.62 MB)",
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "Not enough memory resources are available to complete this operation. (8007000E)",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_want_of_memory_is_known_by_its_words(text: str) -> None:
    assert error_patterns.classify_error_text(text) == "out_of_memory"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "DXGI_ERROR_DEVICE_REMOVED",
        "The GPU device instance has been suspended. DXGI_ERROR_DEVICE_HUNG 887A0006",
        "HRESULT 0x887a0007 DXGI_ERROR_DEVICE_RESET",
        "vk::Queue::submit: ErrorDeviceLost",
        "VK_ERROR_DEVICE_LOST",
        "HIP error: hipErrorIllegalAddress",
        "Memory access fault by GPU node-1: HSA_STATUS_ERROR_EXCEPTION",
        "uncorrectable ECC error encountered",
    ],
)
def test_a_lost_device_is_known_by_its_words(text: str) -> None:
    assert error_patterns.classify_error_text(text) == "device_lost"


@pytest.mark.parametrize("text", ["", "loaded 8 layers", "memory: 24 GB", "the device is ready", "KeyError: 'memory'"])
def test_other_words_tell_nothing(text: str) -> None:
    assert error_patterns.classify_error_text(text) is None


def dead(code: str, kill: bool = False) -> tuple[ChildProcess, oom_kills.OomWatch]:
    """A child that ended, and the watch that was kept over it."""

    async def play() -> tuple[ChildProcess, oom_kills.OomWatch]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        child = ChildProcess(process, asyncio.get_running_loop())
        watch = oom_kills.watch(child.pid)
        if kill:
            os.kill(child.pid, 9)
        await child.ended()
        return child, watch

    return asyncio.run(play())


def test_a_kill_by_a_person_is_a_crash() -> None:
    child, watch = dead("import time; time.sleep(60)", kill=True)
    error = classify_exit(child, "m on cpu", watch, 5_000_000)
    assert isinstance(error, WorkerCrashed) and "SIGKILL" in error.detail


def test_words_on_stderr_decide_where_no_kernel_did() -> None:
    for words, kind in (("CUDA out of memory", OutOfMemory), ("VK_ERROR_DEVICE_LOST", DeviceLost)):
        child, watch = dead(f"import sys; sys.stderr.write('error: {words}\\n'); sys.exit(1)")
        assert isinstance(classify_exit(child, "m on cuda:0", watch, None), kind)


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with 64 MiB, where this process may make one."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    folder = (version_1 if version_1.exists() else version_2) / f"touchstone-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.limit_in_bytes" if version_1.exists() else "memory.max"
        (folder / limit).write_text(str(64 * 1024 * 1024))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    folder.rmdir()


def test_a_kill_by_the_kernel_for_want_of_memory_is_told_with_numbers(limited: Path) -> None:
    code = f"""
import os
with open({str(limited / "cgroup.procs")!r}, "w") as procs:
    procs.write(str(os.getpid()))
print("ready", flush=True)
input()
held = bytearray(512 * 1024 * 1024)
"""

    async def play() -> tuple[ChildProcess, oom_kills.OomWatch]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert process.stdout and process.stdin
        assert process.stdout.readline() == b"ready\n"
        watch = oom_kills.watch(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        child = ChildProcess(process, asyncio.get_running_loop())
        await asyncio.wait_for(child.ended(), 30)
        return child, watch

    child, watch = asyncio.run(play())
    error = classify_exit(child, "m on cpu", watch, 60_000_000)
    assert isinstance(error, OutOfMemory), error.detail
    assert "memory limit of its cgroup" in error.detail and "it held 60 MB" in error.detail
