"""Shared libraries and packages that do not load: Linux' and Windows' loaders, dyld, NumPy, Python's imports."""

from __future__ import annotations

from backend.common.known_errors.known_error import KnownError
from backend.common.system.shared_libraries import MISSING_GLIBC, MISSING_LIBRARY

_VC = "`winget install Microsoft.VCRedist.2015+.x64`"
SPECIFIC = (
    KnownError(
        "link-loop",
        r"Too many levels of symbolic links",
        "A symbolic link leads back to itself: `find -L {environment} -type l` lists such links of the environment, "
        "and `namei FILE` shows the links to a file of the system. Delete them and reinstall what they belong to "
        "({reinstall}), then refresh.",
        "library load",
        source="https://github.com/SiavashMT/OCT-MPS/issues/2",
    ),
    KnownError(
        "numpy-1-module",
        r"compiled using NumPy 1|_ARRAY_API not found",
        "A package was built for NumPy 1, but NumPy 2 is installed: they are incompatible. {In_environment} install "
        'the older NumPy (`{pip} install "numpy<2"`), or a newer version of the package, then refresh.',
        "library load",
        source="https://github.com/jupyter/notebook/issues/7522",
        lines=2,
    ),
    KnownError(
        "numpy-abi",
        r"numpy\.(?:dtype|ndarray|ufunc) size changed|numpy\.core\.multiarray failed"
        r"|compiled against (?:ABI|API) version|RuntimeError: Numpy is not available",
        "NumPy and a package that was built for another version of it are incompatible with each other. "
        "{In_environment} reinstall both (`{pip} install --force-reinstall numpy {library}`), then refresh.",
        "library load",
        source="https://github.com/seung-lab/igneous/issues/203",
    ),
    KnownError(
        "protobuf",
        r"Descriptors cannot (?:not )?be created directly",
        "The installed protobuf is too new for a package of this environment. {In_environment} install an older one "
        "(`{pip} install 'protobuf<3.21'`), or update that package; then refresh.",
        "library load",
        source="https://github.com/protocolbuffers/protobuf/issues/10064",
    ),
    KnownError(
        "openmp-shared-memory",
        r"Can't open SHM2? failed",
        {
            "container": "OpenMP cannot use shared memory: give the container a writable /dev/shm (`--shm-size=1g`), "
            "then refresh.",
            "any": "OpenMP cannot use shared memory: start the server outside the sandbox that forbids it. On Linux "
            "`ls -ld /dev/shm` must show drwxrwxrwt. Then refresh.",
        },
        "permission",
        source="https://github.com/m-bain/whisperX/issues/503",
    ),
    KnownError(
        "glibc-old",
        MISSING_GLIBC,
        "The system's C library is older than {glibc}, which the package needs: use an older version of the package, "
        "a newer system, or the container image.",
        "library load",
        source="https://github.com/nanoporetech/taiyaki/issues/25",
    ),
    KnownError(
        "library-version",
        r"(?P<file>[^\s'\"]+): version [`'\"]?(?P<symbol>[\w.]+)['\"]? not found",
        "{culprit}",
        "library load",
        source="https://github.com/ContinuumIO/anaconda-issues/issues/7640",
    ),
    KnownError(
        "cuda-libraries-mixed",
        r"(?:undefined )?symbol:? __nvJitLink\w+, version (?P<other>libnvJitLink\.so\.\d+)|undefined symbol: "
        r"(?:cublasLt|cusparse|cudnn|nvrtc)\w+",
        "Two versions of CUDA's libraries are mixed. {foreign}{In_environment} bring them to one version (`{pip} "
        "install --force-reinstall nvidia-nvjitlink-cu12 nvidia-cusparse-cu12`), and remove CUDA's folders from "
        "LD_LIBRARY_PATH. Then refresh.",
        "library load",
        source="https://github.com/pytorch/pytorch/issues/111469",
    ),
    KnownError(
        "openmp-twice",
        r"OMP: Error #15|found \S*(?:iomp5|libomp)\S* already initialized",
        "Two packages of the environment bring OpenMP of their own. {foreign}Remove the second copy: {reinstall} "
        "(conda: `conda install nomkl`). KMP_DUPLICATE_LIB_OK=TRUE only hides the error, and results may be wrong. "
        "Then refresh.",
        "library load",
        source="https://github.com/HiLab-git/MIDeepSeg/issues/4",
    ),
    KnownError(
        "mkl-symbol",
        r"undefined symbol: iJIT_NotifyEvent",
        "The environment's MKL is too new for its torch. {In_environment} install an older one (`conda install "
        'mkl=2024.0`, or `{pip} install "mkl<2024.1"`), then refresh.',
        "library load",
        source="https://github.com/CIA-Oceanix/4dvarnet-starter/pull/23",
    ),
    KnownError(
        "cudnn-missing",
        r"(?:Could not (?:locate|load library) |Unable to load any of \{)(?P<part>(?:lib)?cudnn[\w.]*\w)"
        r"|(?P<part2>libcudnn\w*\.so\.\d+): cannot open"
        r"|which depends on \"(?P<part3>cudnn\w+\.dll)\" which is missing",
        "A part of cuDNN is missing: {part}{part2}{part3}. {In_environment} install it (`{pip} install "
        'nvidia-cudnn-cu12`; for a file that ends in 8: `"nvidia-cudnn-cu12<9"`; for CUDA 13: nvidia-cudnn-cu13), or '
        "add its folder to {path_variable}. Then refresh.",
        "library load",
        source="https://github.com/SYSTRAN/faster-whisper/issues/1230",
    ),
    KnownError(
        "cudnn-mixed",
        r"CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"
        r"|CUDNN_STATUS_(?:SUBLIBRARY_)?VERSION_MISMATCH|Cannot load symbol cudnn|cuDNN version incompatibility",
        "The parts of cuDNN that are loaded have different versions. {In_environment} reinstall all of it (`{pip} "
        "install --force-reinstall nvidia-cudnn-cu12`; nvidia-cudnn-cu13 for CUDA 13), and remove folders with "
        "another cuDNN from {path_variable}. Then refresh.",
        "library load",
        absent=False,
        source="https://github.com/pytorch/pytorch/issues/185512",
    ),
    KnownError(
        "dependency-missing",
        r"which depends on \"(?P<dll>[^\"]+)\" which is missing",
        "One of CUDA's libraries is missing: {dll}. {In_environment} install the libraries of CUDA 12 (`{pip} install "
        "onnxruntime-gpu[cuda,cudnn]`), or add the folder of {dll} to PATH, then refresh.",
        "library load",
        source="https://github.com/yalue/onnxruntime_go/issues/124",
    ),
    KnownError(
        "provider-dll",
        r"LoadLibrary failed with error (?P<number>\d+)",
        "A library that {library} needs is missing or too old: CUDA's libraries, cuDNN or Microsoft's Visual C++ "
        "runtime. {In_environment} install CUDA's (`{pip} install onnxruntime-gpu[cuda,cudnn]`), and run "
        + _VC
        + ", then refresh.",
        "library load",
        source="https://github.com/microsoft/onnxruntime/issues/20589",
    ),
    KnownError(
        "vc-runtime",
        r"WinError 1114|0xc0000142|DLL\)? initialization routine fail|初始化例程失败|初期化ルーチンの実行に失敗"
        r"|vcruntime140|msvcp140|concrt140"
        r"|fbgemm\.dll|libomp140",
        "Install or update Microsoft's Visual C++ runtime, which the library needs: "
        + _VC
        + ", restart the server, then "
        "refresh. If it repeats, reinstall the packages: {reinstall}.",
        "library load",
        source="https://github.com/nagadomi/nunif/issues/701",
    ),
    KnownError(
        "dll-procedure",
        r"WinError 127\b|WinError 182\b|0xc0000139|specified procedure could not be found|procedure entry point",
        "Libraries of different versions are mixed, so the packages are incompatible with each other: {reinstall}. If "
        "it repeats, run " + _VC + ". Then refresh.",
        "library load",
        source="https://github.com/guoyww/AnimateDiff/issues/374",
    ),
    KnownError(
        "dll-dependency",
        r"WinError 126\b|0xc0000135"
        r"|specified module could not be found|找不到指定的模块|(?P<dll>[\w+.-]+\.dll)'? \(or one of its "
        r"dependencies\)",
        "The library{dll_name} or a library that it needs is missing. Run "
        + _VC
        + "; for a build for CUDA update NVIDIA's "
        "driver too. If it repeats, the packages are incomplete: {reinstall}. Then refresh.",
        "library load",
        source="https://github.com/abetlen/llama-cpp-python/issues/981",
    ),
    KnownError(
        "library-architecture",
        r"WinError 193|0xc000007b"
        r"|not a valid Win32 application|不是有效的 Win32|wrong ELF class|incompatible architecture"
        r"|mach-o, but wrong architecture",
        {
            "win32": "A library is for another kind of processor or damaged, so the packages are incompatible with "
            "this Python: use a 64-bit Python for this processor ({machine}) and reinstall: {reinstall}. Then "
            "refresh.",
            "darwin": "A library is for another kind of processor than this Python ({machine}), so the packages are "
            "incompatible with it: use one Python for arm64 and reinstall: {reinstall}. Then refresh.",
            "any": "A library is for another kind of processor than this Python ({machine}), so the packages are "
            "incompatible with it: {reinstall}. Then refresh.",
        },
        "library load",
        source="https://github.com/pytorch/pytorch/issues/41585",
    ),
    KnownError(
        "library-damaged",
        r"file too short|invalid ELF|bad magic number|truncated (?:mach-o|file)"
        r"|source code (?:string )?cannot contain null bytes|marshal data too short|bad marshal data"
        r"|bad local file header",
        "A library's file is damaged or incomplete: {reinstall}. Then refresh.",
        "library load",
    ),
)
GENERAL = (
    KnownError(
        "driver-library-missing",
        r"(?P<so>lib(?:amdhip64|hsa-runtime64|d3d12|dxcore|directml)\S*?\.so(?:\.\d+)*|vulkan-1\.dll|amdhip64\S*\.dll)"
        r"['\"]?(?: \(or one of its dependencies\)|: cannot open shared object file)",
        "{install_library}",
        "driver",
        source="https://github.com/ROCm/legacy-rocm-build/issues/1753",
    ),
    KnownError(
        "library-missing",
        MISSING_LIBRARY,
        "{install_library}",
        "library load",
        source="https://github.com/stereolabs/zed-docker/issues/15",
    ),
    KnownError(
        "undefined-symbol",
        r"undefined symbol|symbol not found|symbol lookup error|abi mismatch|DLL load failed"
        r"|Intel MKL FATAL ERROR: Cannot load|Module use of python\d+\.dll conflicts",
        "{foreign}The packages of this environment are incompatible with each other: {reinstall}. Then refresh.",
        "library load",
        source="https://github.com/score-p/scorep_binding_python/issues/110",
    ),
    KnownError(
        "package-incomplete",
        r"no module named|cannot import name|has no attribute|partially initialized module",
        "The package is missing or incomplete in that environment; reinstall it: {reinstall}. Then refresh.",
        "runtime package",
        source="https://github.com/spyder-ide/spyder/issues/23561",
    ),
)
