"""AMD's kernel driver, ROCm and HIP."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

KNOWN = (
    KnownError(
        "amd-wrong-chip",
        r"hipErrorNoBinaryForGpu|unable to find code object|no code object|TensileLibrary|hipErrorInvalidDeviceFunction"
        r"|HIP error: invalid device function|hipErrorInvalidImage",
        "This build has no code for the card's chip. {hsa}Install a build for it ({build}), or use the card through "
        "Vulkan (llama.cpp), then refresh.",
        "runtime package",
        source="https://github.com/ROCm/legacy-rocm-build/issues/1867",
    ),
    KnownError(
        "kfd-denied",
        r"/dev/(?P<node>kfd|dri)\S* .*(?:Permission denied|Operation not permitted)|(?:Permission denied|Operation not "
        r"permitted|EACCES)[^\n]*/dev/(?P<node2>kfd|dri)",
        {
            "container": "This user may not open /dev/{node}{node2}. Start the container with `--device /dev/kfd "
            "--device /dev/dri --group-add $(stat -c %g /dev/kfd)`; in a system container such as LXC run `sudo "
            "usermod -aG render,video $USER` in it. Then refresh.",
            "any": "This user may not open /dev/{node}{node2}: `ls -l /dev/kfd /dev/dri` shows the groups. Run `sudo "
            "usermod -aG render,video $USER`, log in again, then refresh.",
        },
        "permission",
        source="https://github.com/ROCm/legacy-rocm-build/issues/1211",
    ),
    KnownError(
        "kfd-missing",
        r"/dev/kfd\S* .*(?:No such file|Invalid argument)|/dev/kfd is missing|No such file or directory: '/dev/kfd'",
        {
            "container": "The container does not see AMD's compute node: start it with `--device /dev/kfd --device "
            "/dev/dri`.",
            "wsl": "WSL has no /dev/kfd; ROCm finds cards through /dev/dxg only with HSA_ENABLE_DXG_DETECTION=1 and "
            "ROCm 7 for WSL. Otherwise use Touchstone in Windows, or the card through Vulkan.",
            "any": "The kernel's driver amdgpu runs without its compute part: `sudo modprobe amdgpu`, and use a "
            "kernel built with CONFIG_HSA_AMD, such as the distribution's. Then refresh.",
        },
        "driver",
        source="https://github.com/ROCm/legacy-rocm-build/issues/1798",
    ),
    KnownError(
        "kfd-unsupported",
        r"/dev/kfd read-write: Cannot allocate memory|not supported in kfd|HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        "ROCm does not support this card, or its driver failed to start: `sudo dmesg | grep -i kfd` shows it. Use the "
        "card through Vulkan (llama.cpp), or update the kernel and ROCm, then refresh.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/ROCm/rocminfo/issues/41",
    ),
    KnownError(
        "no-hip-device",
        r"hipErrorNoDevice|No HIP GPUs are available|no ROCm-capable device",
        "ROCm finds no card: `rocminfo` shows whether the driver does, and `ls -l /dev/kfd /dev/dri` whether your user "
        "may open it (groups render and video). {visible}{hsa}Then refresh.",
        "driver",
        code="device_lost",
    ),
    KnownError(
        "hip-illegal-state",
        r"HIP.*cannot be performed in the present state|hipErrorIllegalState",
        "HIP cannot use the card in its present state; builds that are older than the card or its driver report this. "
        "{hsa}Update the runtime ({update}), then refresh. If it repeats, use the card through Vulkan (llama.cpp).",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/invoke-ai/InvokeAI/issues/5738",
    ),
    KnownError(
        "amd-fault",
        r"Memory access fault by GPU node|HSA_STATUS_ERROR",
        "A computation failed on the card. {hsa}Refresh; if it repeats, update the kernel and the runtime ({update}), "
        "or use the card through Vulkan.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/ROCm/legacy-rocm-build/issues/4554",
    ),
)
