"""Limits and settings of the system: memory, files, mounts, SELinux, permissions."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError

NO_TEMPORARY_FOLDER = r"No usable temporary directory"
DISK_FULL = r"No space left on device|Errno 28\b|Disk quota exceeded|WinError 112\b"
READ_ONLY = r"Read-only file system|Errno 30\b|\bEROFS\b"
DENIED = r"Permission denied|\bEACCES\b|Errno 13\b|Access is denied|WinError 5\b"
_FILE = r"(?P<file>[^\s'\":]*[./][^\s'\":]*)?"

LIMITS = (
    KnownError(
        "temporary-folder",
        NO_TEMPORARY_FOLDER,
        {
            "container": "No folder for temporary files is writable: start the container with `--tmpfs /tmp`, or set "
            "TMPDIR to a writable volume, then refresh.",
            "win32": "No folder for temporary files is writable: set TEMP and TMP to a folder that you may write to, "
            "restart the server, then refresh.",
            "any": "No folder for temporary files is writable: set TMPDIR to a folder that you may write to, restart "
            "the server, then refresh.",
        },
        "permission",
        source="https://github.com/NVIDIA/pix2pixHD/issues/67",
    ),
    KnownError(
        "open-files",
        r"Too many open files|Errno 24\b|WinError 4\b|too many open files",
        {
            "container": "The limit on open files is reached: start the container with `--ulimit nofile=65536`.",
            "darwin": "The limit on open files is reached: run `ulimit -n 65536` in the shell that starts the server, "
            "then restart it.",
            "any": "The limit on open files is reached: run `ulimit -n 65536` in the shell that starts the server "
            "(systemd: `LimitNOFILE=65536`), then restart it.",
        },
        "permission",
        source="https://github.com/pytorch/pytorch/issues/14768",
    ),
    KnownError(
        "threads",
        r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        {
            "container": "No further thread can be started: raise the container's limit (`--pids-limit`). With a "
            "Docker older than 20.10.10 update Docker, whose seccomp profile forbids clone3.",
            "any": "No further thread can be started: raise the limit (`ulimit -u`; systemd: `TasksMax=`), or close "
            "other programs, then refresh.",
        },
        "permission",
        source="https://github.com/podman-container-tools/podman/issues/11862",
    ),
    KnownError(
        "static-tls",
        _FILE + r"[: ]+cannot allocate memory in static TLS block",
        "The loader has no room for the thread-local data of {file}, because it is loaded late. Start the server with "
        "`LD_PRELOAD={file}`, or with `GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384` (glibc 2.32 or newer), "
        "then refresh.",
        "library load",
        source="https://github.com/opencv/opencv/issues/14884",
    ),
    KnownError(
        "static-tls-full",
        r"cannot load any more object with static TLS",
        "The loader has no room for the thread-local data of another library, because glibc is old. Start the server "
        "with `LD_PRELOAD` naming the library that fails (mostly libgomp.so.1), or use a system with glibc 2.32 or "
        "newer, or the container image. Then refresh.",
        "library load",
        source="https://github.com/pytorch/pytorch/issues/2575",
    ),
    KnownError(
        "noexec",
        _FILE + r"[: ]+failed to map segment from shared object",
        "{file} is on a file system that is mounted `noexec`: `findmnt -T {file}` shows it. Run `sudo mount -o "
        "remount,exec MOUNT`, or move the environment and the data folder (TOUCHSTONE_DATA_DIR) to another disk; for "
        "/tmp set TMPDIR. Then refresh.",
        "permission",
        source="https://github.com/xerial/snappy-java/issues/240",
    ),
    KnownError(
        "executable-stack",
        _FILE + r"[: ]+cannot enable executable stack as shared object requires",
        "{file} asks for an executable stack, which SELinux or glibc 2.41 refuses. Clear the flag: `patchelf "
        "--clear-execstack {file}`, or update its package; with SELinux `sudo setsebool -P selinuxuser_execstack on` "
        "permits it. Then refresh.",
        "permission",
        source="https://github.com/ClickHouse/clickhouse-odbc/issues/570",
    ),
    KnownError(
        "selinux-relocation",
        _FILE + r"[: ]+(?:cannot (?:restore segment prot after reloc|change memory protections)"
        r"|cannot apply additional memory protection after "
        r"relocation|RELRO protection failed)",
        {
            "container": "SELinux forbids this library to change its memory. Mount volumes with `:z`, update the "
            "host's container-selinux package, and check `sudo ausearch -m avc -ts recent` on the host.",
            "any": "SELinux forbids the library {file} to change its memory. Run `sudo restorecon -RF` on the "
            "environment ({environment}), or `sudo chcon -t textrel_shlib_t {file}`; `sudo ausearch -m avc -ts "
            "recent` shows what was denied. Then refresh.",
        },
        "permission",
        source="https://github.com/podman-container-tools/podman/issues/3859",
    ),
    KnownError(
        "read-only",
        r"(?:" + READ_ONLY + r")(?:.*?['\"](?P<path>[^'\"]+)['\"])?",
        {
            "container": "A folder that the library writes to is read-only ({path}). Mount a volume there, or set "
            "HOME and XDG_CACHE_HOME to a writable volume, then refresh.",
            "any": "A folder that the library writes to is read-only ({path}). Set HOME and XDG_CACHE_HOME to a "
            "writable folder where the server is started, or mount it writable, then refresh.",
        },
        "permission",
        source="https://github.com/payu-org/payu/issues/699",
    ),
    KnownError(
        "home-denied",
        r"(?:"
        + DENIED
        + r").*?['\"](?P<path>[^'\"]*(?:/\.(?:cache|config|local|nv|triton)|^/cache|AppData)[^'\"]*)['\"]"
        r"|Permission denied:?\s*'?(?P<root>/cache)\b",
        {
            "container": "This user may not write to {path}{root}. Set HOME and XDG_CACHE_HOME to a writable volume, "
            "then refresh.",
            "win32": "This user may not write to {path}{root}. Close programs that use it, or give your user access "
            "to that folder, then refresh.",
            "any": "This user may not write to {path}{root}. Run `sudo chown -R $USER` on that folder, or set HOME and "
            "XDG_CACHE_HOME to a writable one, then refresh.",
        },
        "permission",
        source="https://github.com/immich-app/immich/issues/30680",
    ),
    KnownError(
        "storage-gone",
        r"Stale (?:NFS )?file handle|Transport endpoint is not connected|Errno (?:5|107|116)\b|Input/output error",
        "The disk or the network drive with the environment does not answer as it should: `findmnt -T {environment}` "
        "shows it, and `sudo dmesg` its errors. Mount it again, or move the environment to a local disk, then refresh.",
        "library load",
    ),
    KnownError(
        "blocked-by-policy",
        r"WinError (?:225|1260|4551)\b|Application Control policy|library load disallowed by system policy"
        r"|not valid for use in process",
        {
            "darwin": "This Mac does not allow the library to be loaded. Run `xattr -dr com.apple.quarantine` on the "
            "environment ({environment}), or reinstall the packages: {reinstall}. Then refresh.",
            "any": "A virus scanner or a policy of the system (Smart App Control, AppLocker) blocks a file of the "
            "library. Permit the environment ({environment}) there, and reinstall the packages if the file was "
            "removed: {reinstall}. Then refresh.",
        },
        "permission",
    ),
    KnownError(
        "page-file",
        r"WinError 1455|os error 1455|paging file is too small|页面文件太小",
        "Windows' page file is too small for the libraries' memory. Open SystemPropertiesPerformance.exe > Advanced > "
        "Virtual memory, choose a size managed by the system (or 32 GB and more), restart Windows, then refresh.",
        "library load",
        code="out_of_memory",
        source="https://github.com/pytorch/pytorch/issues/59904",
    ),
)
MEMORY = (
    KnownError(
        "host-memory",
        r"DefaultCPUAllocator: (?:not enough|can't allocate) memory|\bMemoryError\b|\bbad_alloc\b|Errno 12\b"
        r"|ggml_aligned_malloc: insufficient memory|Cannot allocate memory|WinError 8\b",
        {
            "container": "Memory is used up: close other programs that use the device's memory or the machine's, or "
            "raise the container's limit (`docker run --memory`), then refresh.",
            "wsl": "Memory is used up: close other programs that use the device's memory or the machine's, or raise "
            "`memory=` under `[wsl2]` in %UserProfile%\\.wslconfig and run `wsl --shutdown`, then refresh.",
            "any": "Memory is used up: close other programs that use the device's memory or the machine's, then "
            "refresh.",
        },
        "computation",
        absent=False,
        code="out_of_memory",
        source="https://github.com/ROCm/legacy-rocm-build/issues/2232",
    ),
    KnownError(
        "device-memory",
        r"out of memory|insufficient memory|not enough memory|failed to allocate|OutOfDeviceMemory|OutOfHostMemory"
        r"|OUT_OF_DEVICE_MEMORY|OUT_OF_HOST_MEMORY|ErrorOutOfMemory|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED"
        r"|CUBLAS_STATUS_ALLOC_FAILED|E_OUTOFMEMORY|8007000E|Device memory allocation of size \d+ failed",
        {
            "win32": "Close other programs that use the device's memory (Task Manager > Details > GPU memory), then "
            "refresh.",
            "darwin": "Close other programs that use the device's memory, which is the Mac's own memory, then refresh.",
            "any": "Close other programs that use the device's memory (`nvidia-smi`, `rocm-smi` or `nvtop` lists "
            "them), then refresh.",
        },
        "computation",
        absent=False,
        code="out_of_memory",
        source="https://github.com/ggml-org/llama.cpp/issues/15256",
    ),
)
FILES = (
    KnownError(
        "disk-full",
        DISK_FULL,
        "Free some disk space, then refresh.",
        "library load",
        source="https://github.com/NVIDIA/Megatron-LM/issues/878",
    ),
    KnownError(
        "node-denied",
        r"(?:"
        + DENIED
        + r"|operation not permitted).*?(?P<node>/dev/[\w/]+)|(?P<node2>/dev/(?:kfd|dri|dxg|nvidia|accel)"
        r"[\w/]*).*?(?:" + DENIED + r"|operation not permitted)",
        {
            "container": "This user may not open {node}{node2}. Start the container with `--device {node}{node2}` and "
            "`--group-add $(stat -c %g {node}{node2})`; in a system container such as LXC run `sudo usermod -aG GROUP "
            "$USER` in it, with the group that `ls -l {node}{node2}` shows. Then refresh.",
            "wsl": "Give your user access to {node}{node2}: `ls -l {node}{node2}` shows its group, `sudo usermod -aG "
            "GROUP $USER` joins it; then run `wsl --shutdown` in Windows and open WSL again.",
            "any": "Give your user access to {node}{node2}: `ls -l {node}{node2}` shows its group, `sudo usermod -aG "
            "GROUP $USER` joins it; log in again, then refresh.",
        },
        "permission",
        source="https://github.com/ROCm/legacy-rocm-build/issues/1211",
    ),
    KnownError(
        "denied",
        r"(?:" + DENIED + r"|operation not permitted)(?:.*?['\"](?P<path>[^'\"]+)['\"])?",
        {
            "win32": "Access was denied ({path}): close programs that use the file, exclude the folder from the virus "
            "scanner, or give your user access to it, then refresh.",
            "any": "Access was denied ({path}): `ls -l` on the file in the message shows its owner and group. Give "
            "your user access to it (`sudo chown`, or `sudo usermod -aG GROUP $USER` and log in again), then refresh.",
        },
        "permission",
        source="https://github.com/pypa/pip/issues/7033",
    ),
)
