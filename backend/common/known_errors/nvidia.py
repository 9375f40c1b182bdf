"""NVIDIA's driver and CUDA."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

_INSTALL = {
    "container": "Install the card's driver on the host, and start the container with `--gpus all` (requires NVIDIA's "
    "container toolkit on the host).",
    "wsl": "Install the card's driver in Windows, not in Linux; run `wsl --shutdown`, then refresh.",
    "win32": "Install the card's driver (nvidia.com/drivers), restart, then refresh.",
    "any": "Install the card's driver (Ubuntu: `sudo ubuntu-drivers install`; Debian: package nvidia-driver; Fedora: "
    "akmod-nvidia), restart, then refresh.",
}
KNOWN = (
    KnownError(
        "driver-mismatch",
        r"driver/library version mismatch|kernel driver does not match|nvml.*mismatch",
        {
            "container": "The host's driver was updated while it runs: restart the machine, then start the container "
            "again.",
            "wsl": "The driver was updated while the system runs: run `wsl --shutdown` in Windows; if it repeats, "
            "restart Windows and remove NVIDIA's driver packages from this Linux.",
            "any": "The driver was updated while the system runs: restart the machine (or unload it: `sudo rmmod "
            "nvidia_uvm nvidia_drm nvidia_modeset nvidia`), then refresh.",
        },
        "driver",
        source="https://github.com/intel/llvm/issues/17614",
    ),
    KnownError(
        "fabric-manager",
        r"Error 802\b|error \(802\)|system not yet initialized|ErrorSystemNotReady|SYSTEM_NOT_READY",
        "These cards are joined by NVSwitch and need NVIDIA's Fabric Manager: install the package "
        "nvidia-fabricmanager of the driver's version, run `sudo systemctl enable --now nvidia-fabricmanager`, then "
        "refresh.",
        "driver",
        absent=False,
        source="https://github.com/pytorch/pytorch/issues/35710",
    ),
    KnownError(
        "forward-compatibility",
        r"forward compatibility was attempted|ErrorCompatNotSupportedOnDevice|Error 80[34]\b|SYSTEM_DRIVER_MISMATCH",
        {
            "container": "The image's CUDA is newer than the host's driver, and this card does not support CUDA's "
            "forward compatibility: update the driver of the host, or use an image with an older CUDA.",
            "any": "The loader took a libcuda from CUDA's folder `compat`, which this card does not support: remove "
            "that folder from LD_LIBRARY_PATH or uninstall the package cuda-compat, update the driver, restart, then "
            "refresh.",
        },
        "driver",
        source="https://github.com/PKU-YuanGroup/Video-LLaVA/issues/22",
    ),
    KnownError(
        "driver-too-old",
        r"driver (?:on your system )?is too old|driver version is insufficient|ErrorInsufficientDriver"
        r"|requires a newer driver|unsupported toolchain"
        r"|not supported in the installed CUDA driver",
        {
            "container": "The host's driver is older than this build needs: update the driver of the host, or install "
            "a build for an older CUDA ({build}), then refresh.",
            "wsl": "The driver is older than this build needs: update the driver in Windows (nvidia.com/drivers) and "
            "run `wsl --shutdown`, or install a build for an older CUDA ({build}), then refresh.",
            "any": "The driver is older than this build needs: update the driver, or install a build for an older CUDA "
            "({build}), then refresh.",
        },
        "driver",
        source="https://github.com/lllyasviel/Fooocus/issues/1313",
    ),
    KnownError(
        "mps-daemon",
        r"MPS (?:client failed to connect|server (?:failed|is not ready))|between the MPS server and the MPS client"
        r"|Error 80[5-7]\b",
        "CUDA's Multi-Process Service (MPS) is configured, but its daemon does not answer. Start it as the same user "
        "(`nvidia-cuda-mps-control -d`), or do without it: `echo quit | nvidia-cuda-mps-control`, and unset "
        "CUDA_MPS_PIPE_DIRECTORY where the server is started. Then refresh.",
        "driver",
        absent=False,
        source="https://github.com/nanoporetech/dorado/issues/458",
    ),
    KnownError(
        "card-busy",
        r"CUDA-capable device\S* (?:is|are|is/are) busy or unavailable|ErrorDevices?Unavailable"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE",
        {
            "win32": "The card is in exclusive mode, or another program holds it: close that program (`nvidia-smi` "
            "lists them), and as administrator run `nvidia-smi -c 0`, then refresh.",
            "any": "The card is in exclusive mode, or another program holds it: `nvidia-smi` shows the program and "
            "the compute mode. End the program, or run `sudo nvidia-smi -c DEFAULT`; for a virtual GPU check its "
            "licence. Then refresh.",
        },
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/NVIDIA/DIGITS/issues/2005",
    ),
    KnownError(
        "gpu-reset-required",
        r"requires? reset|reset required",
        "The driver stopped using the card until it is reset: end all programs that use it, run `sudo nvidia-smi "
        "--gpu-reset -i NUMBER`, or restart the machine; then refresh. If it repeats, check `sudo dmesg | grep -i "
        "xid`.",
        "driver",
        absent=False,
        code="device_lost",
    ),
    KnownError(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|GPU_IS_LOST|\bXid\b.{0,40}\b79\b|unable to determine the device handle"
        r"|reboot the system to recover",
        "The card no longer answers on the PCI bus. Restart the machine; if it repeats, power it off, check the "
        "card's power cables, seat and temperature. `sudo dmesg | grep -i xid` shows the driver's report. Then "
        "refresh.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/AlexeyAB/darknet/issues/86",
    ),
    KnownError(
        "ecc-error",
        r"uncorrectable ECC|ECCUncorrectable|ECC_UNCORRECTABLE|ECCNotCorrectable",
        "The card's memory has an error that cannot be corrected. Restart the machine, then refresh; `nvidia-smi -q -d "
        "ECC,ROW_REMAPPER` shows the counts. If it repeats, the card is damaged: replace it.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/vllm-project/vllm/issues/5222",
    ),
    KnownError(
        "launch-timeout",
        r"launch timed out",
        "The system ended a computation that took too long for a card with a display. Close other programs that use "
        "the card, or use a card without a display; then refresh. If it repeats, restart the machine.",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/AlexeyAB/darknet/issues/6381",
    ),
    KnownError(
        "wrong-chip",
        r"no kernel image is available|not compatible with the current PyTorch|invalid device function(?!.*hip)"
        r"|unsupported gpu architecture|not supported by this build|PyTorch no longer supports this GPU",
        "This build has no code for the card's chip: install a build for it ({build}), then refresh.",
        "runtime package",
        source="https://github.com/jiangyzy/GOAE/issues/16",
    ),
    KnownError(
        "cuda-unknown",
        r"CUDA unknown error|CUDA error: (?:unknown error|initialization error|OS call failed)|Error 304\b"
        r"|cuda runtime error \((?:999|30)\)|error=999\b|CUDA_ERROR_UNKNOWN|cudaErrorUnknown"
        r"|Error 999\b",
        {
            "container": "The driver's state is damaged, as after the host slept, or /dev/nvidia-uvm is missing here: "
            "run `sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm` on the host, then restart the container.",
            "wsl": "The driver's state is damaged, as after Windows slept: run `wsl --shutdown` in Windows and start "
            "again.",
            "win32": "The driver's state is damaged, as after sleep: restart Windows, then refresh.",
            "any": "The driver's state is damaged, as after sleep: stop programs that use the card, run `sudo "
            "modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm` (or restart the machine), then refresh.",
        },
        "driver",
        absent=False,
        source="https://github.com/pytorch/pytorch/issues/49081",
    ),
    KnownError(
        "container-toolkit",
        r"nvidia-container-cli|could not select device driver",
        "Docker does not reach the card: install NVIDIA's driver and the package nvidia-container-toolkit on the "
        "host, run `sudo nvidia-ctk runtime configure --runtime=docker` and restart Docker.",
        "driver",
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/242",
    ),
    KnownError(
        "module-not-loaded",
        r"couldn.?t communicate with the NVIDIA driver|NVIDIA driver is not loaded|NVML: driver not loaded"
        r"|NVRM: No NVIDIA|NVIDIA probe routine (?:failed|was not called)",
        {
            "container": "The driver of the host is not loaded: run `sudo modprobe nvidia` on the host (after a kernel "
            "update reinstall the driver), then restart the container.",
            "wsl": "Windows' driver does not reach this Linux: update NVIDIA's driver in Windows, run `wsl "
            "--shutdown`, then refresh.",
            "win32": "The driver is installed but not running: reinstall NVIDIA's driver and restart Windows, then "
            "refresh.",
            "any": "The driver's kernel module is not loaded: run `sudo modprobe nvidia`. After a kernel update "
            "reinstall the driver (`sudo dkms autoinstall`); with Secure Boot enrol its key; if nouveau holds the "
            "card, blacklist it. Restart, then refresh.",
        },
        "driver",
        absent=False,
        source="https://github.com/NVIDIA/nvidia-docker/issues/988",
    ),
    KnownError(
        "no-nvidia-driver",
        r"no nvidia driver|cuda driver initialization failed|driver shutting down|driver not found"
        r"|(?P<library_name>libcuda\.so\S*|libnvidia-ml\.so\S*|nvcuda\.dll|nvml\.dll): cannot open",
        {system: "{comes_with}" + text for system, text in _INSTALL.items()},
        "driver",
        source="https://github.com/sgl-project/sglang/issues/4778",
    ),
    KnownError(
        "no-cuda-device",
        r"no CUDA-capable device is detected|CUDA error: invalid device ordinal|Error 101\b"
        r"|No CUDA GPUs are available|CUDA_ERROR_NO_DEVICE",
        {
            "container": "CUDA finds no card here: start the container with `--gpus all`. {visible}Then refresh.",
            "any": "CUDA finds no card: `nvidia-smi` shows whether the driver does. {visible}If the driver was just "
            "installed or updated, restart the machine; then refresh.",
        },
        "driver",
        code="device_lost",
        source="https://github.com/robotology/himrep/issues/25",
    ),
    KnownError(
        "library-start",
        r"(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_NOT_INITIALIZED|failed to create cublas handle",
        "CUDA's library cannot start on the card, mostly because the card's memory is used up: close other programs "
        "that use it (`nvidia-smi` lists them), then refresh. If it repeats, update the runtime ({update}).",
        "computation",
        absent=False,
        source="https://github.com/tensorflow/tensorflow/issues/9489",
    ),
    KnownError(
        "device-fault",
        r"illegal memory access|unspecified launch failure|device-side assert|misaligned address"
        r"|illegal instruction was|hardware stack error|uncorrectable NVLink error|CUBLAS_STATUS_EXECUTION_FAILED"
        r"|cudaError(?:IllegalAddress|LaunchFailure|Assert|HardwareStackError)"
        r"|CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|ASSERT)|hipError(?:IllegalAddress|LaunchFailure)",
        "A computation failed on the card, and the card's state is undefined. Refresh, which uses a new process. If it "
        "repeats, restart the machine, or reset the device by its driver's tool; then update the runtime ({update}).",
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/hpcaitech/Open-Sora/issues/694",
    ),
)
