"""Intel's drivers, Level Zero, OpenCL and OpenVINO."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

_GPU = (
    "Install Intel's compute driver (Debian, Ubuntu: `sudo apt-get install -y intel-opencl-icd libze-intel-gpu1 "
    "libze1`; Fedora: intel-compute-runtime), and join the group of /dev/dri/renderD128 (`sudo usermod -aG render "
    "$USER`); log in again, then refresh."
)
_WINDOWS = "Update Intel's graphics driver in Windows (intel.com/download-center), restart, then refresh."
_ACCESS = {
    "container": "Start the container with `--device /dev/dri --group-add $(stat -c %g /dev/dri/renderD128)`; the "
    "image needs Intel's compute driver (intel-opencl-icd, libze-intel-gpu1). Then refresh.",
    "wsl": "Update Intel's graphics driver in Windows and run `wsl --shutdown`; in this Linux install "
    "intel-opencl-icd and libze-intel-gpu1. Then refresh.",
    "win32": _WINDOWS,
    "any": _GPU,
}
_NPU = {
    "win32": "Install Intel's NPU driver (Device Manager > Neural processors; intel.com/download-center), restart, "
    "then refresh.",
    "container": "Start the container with `--device /dev/accel/accel0 --group-add $(stat -c %g /dev/accel/accel0)`; "
    "the image needs the packages of github.com/intel/linux-npu-driver. Then refresh.",
    "any": "Install Intel's NPU driver: Linux 6.6 or newer (`sudo modprobe intel_vpu`), the packages of "
    "github.com/intel/linux-npu-driver, and membership in the group of /dev/accel/accel0 (`sudo usermod -aG render "
    "$USER`). Then refresh.",
}
KNOWN = (
    KnownError(
        "npu-missing",
        r"No NPU devices were found|Device with \"NPU\" name is not registered|NPU name is not registered"
        r"|intel_vpu.*(?:fail|error)",
        _NPU,
        "driver",
        source="https://github.com/openvinotoolkit/openvino/issues/29505",
    ),
    KnownError(
        "openvino-device",
        r"Device with \"?(?P<device>\w+)\"? name is not registered in the OpenVINO Runtime",
        {system: "OpenVINO has no plugin or driver for {device}. " + text for system, text in _ACCESS.items()},
        "driver",
        source="https://github.com/second-state/chat-with-chatgpt/issues/384",
    ),
    KnownError(
        "level-zero",
        r"ZE_RESULT_ERROR_(?:UNINITIALIZED|DEPENDENCY_UNAVAILABLE|INSUFFICIENT_PERMISSIONS)|zeInit\b.*(?:fail|error)",
        {system: "Level Zero finds no driver. " + text for system, text in _ACCESS.items()},
        "driver",
        source="https://github.com/oneapi-src/level-zero/issues/7",
    ),
    KnownError(
        "opencl-none",
        r"No device of requested type available"
        r"|clGetPlatformIDs[^\n]*-1001|PLATFORM_NOT_FOUND_KHR|OpenCL Error -1001|No GPU device was found",
        {system: "OpenCL or SYCL finds no driver of a card. " + text for system, text in _ACCESS.items()},
        "driver",
        source="https://github.com/intel/compute-runtime/issues/210",
    ),
    KnownError(
        "xpu-memory",
        r"UR_RESULT_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY|HOST_MEMORY)|PI_ERROR_OUT_OF_RESOURCES|XPU out of memory"
        r"|CL_OUT_OF_(?:RESOURCES|HOST_MEMORY)|CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "The card's memory is used up: close other programs that use the device's memory, then refresh.",
        "computation",
        absent=False,
        code="out_of_memory",
        source="https://github.com/intel/torch-xpu-ops/issues/2445",
    ),
    KnownError(
        "xpu-lost",
        r"UR_RESULT_ERROR_DEVICE_LOST|PI_ERROR_DEVICE_NOT_AVAILABLE|ZE_RESULT_ERROR_DEVICE_LOST",
        {
            "win32": "Windows reset the card. Close programs that use its memory and refresh; if it repeats, update "
            "Intel's graphics driver.",
            "any": "The kernel reset the card: `sudo dmesg | grep -iE 'xe|i915'` shows why. Refresh; if it repeats, "
            "update the kernel and Intel's compute driver.",
        },
        "driver",
        absent=False,
        code="device_lost",
        source="https://github.com/intel/intel-extension-for-pytorch/issues/780",
    ),
)
