"""Judge the interpreter that runs this file: `python -I interpreter.py [posix]`, for launch_wsl.sh and launch.ps1.

Prints `good` (exit code 0), a sentence if the required packages do not exist for it (2), or a word for another fault
(1): `old`, `windows` (WSL can start those), `32-bit`, or the name of a missing module. Runs on Python 3.6 and newer.
"""

import platform
import sys
import sysconfig

OLDEST, NEWEST = (3, 11), (3, 14)
MODULES = ("ensurepip", "venv", "ssl", "sqlite3", "ctypes", "zlib")


def find_fault(is_posix: bool) -> "tuple[str, int]":
    """Return what is printed, and the exit code. `is_posix`: only a Python of this Linux or Mac fits."""
    if sys.version_info[:2] < OLDEST:
        return "old", 1
    if is_posix and sys.platform == "win32":
        return "windows", 1
    if sys.maxsize < 2**32:
        return "32-bit", 1
    for name in MODULES:
        try:
            __import__(name)
        except ImportError:
            return name, 1
    sentence = find_missing_packages(sys.version_info[:2])
    return (sentence, 2) if sentence else ("good", 0)


def find_missing_packages(version: "tuple[int, int]") -> str:
    """Return a sentence if the required packages do not exist for a Python of this platform, else an empty text."""
    oldest, newest, where = supported_range()
    if oldest <= version <= newest:
        return ""
    text = f"Python {version[0]}.{version[1]}{where} is not supported"
    return f"{text}: the packages exist for {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}."


def supported_range() -> "tuple[tuple[int, int], tuple[int, int], str]":
    """Return the first and the last Python that requirements.txt can be installed for, and the platform if special."""
    if sysconfig.get_platform() == "win-arm64":
        return (3, 12), NEWEST, " for Windows on ARM"  # no PyYAML for 3.11
    # The last ONNX Runtime for these is 1.23.
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        return OLDEST, (3, 13), " on an Intel Mac"
    if sys.platform == "darwin" and platform.mac_ver()[0].startswith("13."):
        return OLDEST, (3, 13), " on macOS 13"
    return OLDEST, NEWEST, ""


if __name__ == "__main__":
    fault, code = find_fault("posix" in sys.argv[1:])
    sys.stdout.write(fault + "\n")
    sys.exit(code)
