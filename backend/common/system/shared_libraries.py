"""Missing shared libraries: parse them from loader errors, and return the command that installs them.

Package names are from the distributions' package lists.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from functools import cache

# Patterns of loaders' errors, also used by the table of known errors.
MISSING_LIBRARY = (
    r"(?P<so>lib[\w+.-]+?\.so(?:\.\d+)*): cannot open shared object file"
    r"|(?:Error loading shared library|Library not loaded:) (?:\S*/)?(?P<dylib>lib[\w+.-]+?\.(?:so|dylib)(?:\.\d+)*)"
    r"|Could not find (?:module|library) '?(?:\S*[\\/])?(?P<module>[\w+.-]+\.(?:dll|so(?:\.\d+)*))"
)
MISSING_GLIBC = r"version [`'\"]?GLIBC_(?P<glibc>\d+\.\d+)['\"]? not found"
_MISSING = re.compile(MISSING_LIBRARY, re.IGNORECASE)
_GLIBC = re.compile(MISSING_GLIBC)
_MANAGERS = {
    "debian": "sudo apt-get install -y",
    "fedora": "sudo dnf install -y",
    "suse": "sudo zypper install -y",
    "arch": "sudo pacman -S --needed",
    "alpine": "sudo apk add",
}
_FAMILIES = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}
_ORDER = ("debian", "fedora", "suse", "arch", "alpine")
_PACKAGES: dict[str, tuple[str, ...]] = {  # in the order above; an empty name: not packaged
    "libgomp.so.1": ("libgomp1", "libgomp", "libgomp1", "gcc-libs", "libgomp"),
    "libstdc++.so.6": ("libstdc++6", "libstdc++", "libstdc++6", "gcc-libs", "libstdc++"),
    "libvulkan.so.1": ("libvulkan1", "vulkan-loader", "libvulkan1", "vulkan-icd-loader", "vulkan-loader"),
    "libOpenCL.so.1": ("ocl-icd-libopencl1", "ocl-icd", "libOpenCL1", "ocl-icd", "ocl-icd"),
    "libze_loader.so.1": ("libze1", "oneapi-level-zero", "libze_loader1", "level-zero-loader", ""),
    "libnuma.so.1": ("libnuma1", "numactl-libs", "libnuma1", "numactl", "numactl"),
    "libelf.so.1": ("libelf1", "elfutils-libelf", "libelf1", "libelf", "libelf"),
    "libdrm.so.2": ("libdrm2", "libdrm", "libdrm2", "libdrm", "libdrm"),
    "libdrm_amdgpu.so.1": ("libdrm-amdgpu1", "libdrm", "libdrm_amdgpu1", "libdrm", "libdrm"),
    "libGL.so.1": ("libgl1", "libglvnd-glx", "libGL1", "libglvnd", "mesa-gl"),
    "libsndfile.so.1": ("libsndfile1", "libsndfile", "libsndfile1", "libsndfile", "libsndfile"),
    "libtbb.so.12": ("libtbb12", "tbb", "libtbb12", "onetbb", "onetbb"),
}
# Libraries of drivers, or of Windows in WSL, which no package of the distribution contains.
_DRIVERS = {
    r"libcuda\.so|libnvidia-ml\.so|nvcuda\.dll|nvml\.dll": "NVIDIA's driver",
    r"libd3d12|libdxcore|libdirectml\.so": "the GPU driver of Windows",
    r"libamdhip64|libhsa-runtime64|amdhip64|libhipblas|librocblas": "AMD's ROCm",
    r"vulkan-1\.dll": "the graphics driver",
    r"(?i)vcruntime140|msvcp140|concrt140": "Microsoft's Visual C++ runtime",
}

# Libraries in packages of the makers, for the builds that do not contain them. The group is CUDA's major version.
_REQUIREMENTS = {
    r"libcudart\.so\.(\d+)|cudart64_(\d+)\.dll": "nvidia-cuda-runtime",
    r"libcublas(?:Lt)?\.so\.(\d+)|cublas(?:Lt)?64_(\d+)\.dll": "nvidia-cublas",
    r"libsycl\.so|libimf\.so|libsvml\.so|libintlc\.so|libirng\.so": "intel-sycl-rt",
    r"libdnnl\.so": "onednn",
    r"libmkl_": "onemkl-sycl-blas",
}


def missing_library(text: str) -> str | None:
    """Parse the missing library, such as `libgomp.so.1`, from a loader's error. Returns None for other texts."""
    match = _MISSING.search(text)
    return next(filter(None, match.groups()), None) if match else None


def missing_glibc(text: str) -> str | None:
    """Parse the required glibc version, such as `2.35`, from a loader's error. Returns None for other texts."""
    match = _GLIBC.search(text)
    return match[1] if match else None


def command_for(library: str, distribution: Sequence[str] | None = None) -> str | None:
    """Return the command that installs a library, None if unknown.

    `distribution`: optional, ID and ID_LIKE of os-release. Default: this system's.
    """
    packages = _PACKAGES.get(library)
    for name in distribution_ids() if distribution is None else distribution:
        family = _FAMILIES.get(name, name.partition("-")[0])
        family = _FAMILIES.get(family, family)
        if packages and family in _ORDER and (package := packages[_ORDER.index(family)]):
            return f"{_MANAGERS[family]} {package}"
    return None


def requirement_providing(library: str) -> str | None:
    """Return the Python package that contains a library of NVIDIA's or Intel's toolkits, None if unknown."""
    for pattern, requirement in _REQUIREMENTS.items():
        if match := re.match(pattern, library):
            version = next(filter(None, match.groups()), None)
            if version is None:
                return requirement
            # The packages for CUDA 12 have it in their names, later ones in their versions.
            return f"{requirement}-cu{version}" if int(version) <= 12 else f"'{requirement}=={version}.*'"
    return None


def package_providing(library: str) -> str | None:
    """Return the driver or product that contains a library, None if unknown."""
    return next((provider for pattern, provider in _DRIVERS.items() if re.search(pattern, library)), None)


@cache
def distribution_ids() -> tuple[str, ...]:
    """Return ID and ID_LIKE of this Linux, such as `("ubuntu", "debian")`; empty on other systems or if unknown."""
    if sys.platform != "linux":
        return ()
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release["ID"], *release.get("ID_LIKE", "").split())
