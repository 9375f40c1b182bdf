"""The interface of the backends in `devices/`: what a backend file declares, and what its library detects.

A backend file has one name, `BACKEND: Backend`. All its optional parts are fields here, so a misspelled one raises
TypeError at import. Server and workers both import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.common.types import DeviceKind, Proof


@dataclass(frozen=True)
class DetectedDevice:
    """One device as a library lists it while no device is hidden, before anything is computed on it.

    `identity` distinguishes it from other devices, by the keys that the library reports: `pci` (0000:01:00.0), `uuid`,
    `luid`. If it is empty, name and memory identify the device, and among `equals` devices that share them its `rank`.
    `selectors` are values of the backend's visibility variable that show only this device, the preferred one first; if
    empty, its position does. `fault` is why the library could not describe it; such a device is not opened.
    """

    name: str
    kind: DeviceKind
    hardware_id: str | None
    memory_bytes: int | None
    memory_free_bytes: int | None
    library: str = ""
    position: int = 0
    count: int = 1
    identity: dict[str, str] = field(default_factory=dict)
    architecture: str | None = None
    provider: str | None = None
    equals: int = 1
    rank: int = 0
    selectors: list[str] = field(default_factory=list)
    fault: str | None = None

    @property
    def selector(self) -> str:
        """The value of the visibility variable that shows only this device."""
        return self.selectors[0] if self.selectors else str(self.position)


def detected_device_from(fields: Mapping[str, Any]) -> DetectedDevice:
    """Parse a DetectedDevice from its JSON object."""
    return DetectedDevice(**fields)


class WrongResult(Exception):
    """The device computed wrong numbers, or another device computed them."""


class UnusableDataType(Exception):
    """An engine's own library computes wrongly in a data type; the text has the reason."""

    def __init__(self, dtype: str, why: str) -> None:
        super().__init__(why)
        self.dtype = dtype


class DeviceAbsent(Exception):
    """The library works but has no such device, or the device is gone; the text gives the reason.

    `quiet`: nobody expects a device here, because the library was built for other hardware.
    """

    def __init__(self, why: str, quiet: bool = False) -> None:
        super().__init__(why)
        self.quiet = quiet


@dataclass(frozen=True)
class TorchAccess:
    """Access to one device through torch."""

    torch: Any
    device: Any
    type: str  # `device.type` of a tensor on this device
    synchronize: Callable[[], None]
    allocated_bytes: Callable[[], int] | None  # None if the library does not count
    free_bytes: Callable[[], int | None] = lambda: None
    dtype: str = "bfloat16"  # dtype that models compute in: the shortest that the device computes well
    plain_only: bool = False  # only arithmetic and slices work; the processor indexes by tensors, sorts and sums
    can_record: bool = False  # work can be recorded and replayed, as CUDA graphs are


@dataclass(frozen=True)
class Visibility:
    """Environment variables that decide which devices of a backend a process sees."""

    variables: tuple[str, ...] = ()  # variables that hide or reorder devices; removed before devices are listed
    hide_all: Mapping[str, str] = field(default_factory=dict)  # values that hide every device of this backend
    for_listing: Mapping[str, str] = field(default_factory=dict)  # set in each process that lists or computes
    # Optional. Returns the variables under which a process sees only this device.
    environment: Callable[[DetectedDevice], Mapping[str, str]] | None = None


@dataclass(frozen=True)
class TorchSupport:
    """How torch, or a library that extends it, reaches a backend's devices. The callbacks raise DeviceAbsent."""

    list_devices: Callable[[Any], list[DetectedDevice]]  # takes the torch module
    open_device: Callable[[Any, DetectedDevice], TorchAccess]  # takes the torch module and a listed device
    library: str = "torch"
    compiles: bool = False  # torch.compile works and its results can be cached in a folder


@dataclass(frozen=True)
class OnnxProvider:
    """How an execution provider of ONNX Runtime reaches a backend's devices.

    `names` are the provider's names in lower case, without punctuation and without "ExecutionProvider". The
    compile cache's callback takes the folder and the provider's full name.
    """

    names: tuple[str, ...]
    # From ONNX Runtime's page of the provider, except options that choose a device: the device's id does that.
    options: tuple[str, ...] = ()
    proof_options: Mapping[str, str] | None = None  # Optional. Options under which float32 is computed as float32.
    rounds_inputs: bool = False  # by default float32 is computed with inputs of 11 bits or in float16
    # The accuracy level of products with 4-bit weights that the builder of ONNX Runtime GenAI writes for the provider
    # (`onnxruntime_genai/models/quantization/quant_config.py`): 4 quantizes the inputs to 8 bits, 0 leaves the choice.
    accuracy_level: int = 0
    compiles_shapes: bool = False  # each new input shape is compiled, or only fixed shapes are accepted
    lists_devices: bool = False  # `get_ep_devices` is complete: no listed device means that there is none
    none_listed: str = "its provider is installed and lists no device"
    # Optional. Returns the one device of a provider whose devices need not be listed.
    only_device: Callable[[], DetectedDevice] | None = None
    # Optional. Returns the provider options that keep compiled graphs in a folder.
    cache_options: Callable[[str, str], dict[str, str]] | None = None
    prepare_library: Callable[[Any], None] | None = None  # Optional. Called with onnxruntime before registration.
    prepare_session: Callable[[Any], None] | None = None  # Optional. Called with the SessionOptions of each session.
    refine: Callable[[DetectedDevice], DetectedDevice] | None = None  # Optional. Adds facts from another source.
    library: str = "onnxruntime"


@dataclass(frozen=True)
class GgmlSupport:
    """How ggml, llama.cpp's library, reaches a backend's devices.

    `names` are ggml's names of the backend in lower case, in the names of its files and in its registry. The callbacks
    raise DeviceAbsent, and OSError if a driver is missing.
    """

    names: tuple[str, ...]
    runtimes: tuple[str, ...]  # those whose environments hold a build of llama.cpp for it
    # Optional. Returns the devices from another source than ggml, which does not list all of them.
    list_devices: Callable[[], list[DetectedDevice]] | None = None
    function: str = ""  # with `list_devices`: the function that a build of one file exports if it has the backend
    # Optional. Adds facts to the devices that ggml lists. Takes them, and whether this process sees only one device.
    refine: Callable[[list[DetectedDevice], bool], list[DetectedDevice]] | None = None
    prepare: Callable[[DetectedDevice], None] | None = None  # Optional. Called before the libraries are loaded.
    # Optional. Adds to ggml's own reason for an empty list what else is known of it.
    explain: Callable[[str], str] | None = None
    library: str = "ggml"


@dataclass(frozen=True)
class InstallOffer:
    """A runtime that makes a backend usable, and its hardware. `runtimes/data` defines what the runtime installs."""

    runtime: str
    vendors: tuple[str, ...] = ()  # vendors of the hardware it drives; empty: any
    kinds: tuple[DeviceKind, ...] = ("gpu", "integrated")
    systems: tuple[str, ...] = ("linux", "win32", "darwin")
    architectures: tuple[str, ...] = ()  # prefixes of the chip's name, such as gfx11; empty: any


@dataclass(frozen=True)
class Backend:
    """The facts of a backend, and the libraries that reach its devices: at least one of `onnx`, `torch`, `ggml`."""

    name: str
    label: str
    kind: DeviceKind
    rank: int  # order of automatic choice before anything is measured; lower first
    runtimes: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    engine_aliases: tuple[tuple[str, str, str], ...] = ()  # (alias, task or "*", engine): an alias that names an engine
    indexed: bool = True
    systems: tuple[str, ...] = ("linux", "win32", "darwin")  # values of sys.platform where it is expected
    vendors: tuple[str, ...] = ()  # vendors of the hardware it drives, as the inventory spells them; empty: any
    offers: tuple[InstallOffer, ...] = ()
    successor: str = ""  # the backend that replaced it; then only a user's own interpreter provides it
    leads_unmeasured: bool = True  # whether `auto` may choose it before anything is measured
    onnx: OnnxProvider | None = None
    torch: TorchSupport | None = None
    ggml: GgmlSupport | None = None
    visibility: Visibility = field(default_factory=Visibility)

    def __post_init__(self) -> None:
        """Raise ValueError if no library reaches the backend's devices."""
        if not self.libraries:
            raise ValueError(f"Backend {self.name} names no library: set onnx, torch or ggml.")

    @property
    def libraries(self) -> tuple[str, ...]:
        """Import names of the libraries that reach its devices, the preferred one first."""
        return tuple(support.library for support in (self.onnx, self.torch, self.ggml) if support is not None)

    @property
    def has_compile_cache(self) -> bool:
        """Whether its provider or torch compiles for it and can keep the results in a folder."""
        return bool(self.onnx and self.onnx.cache_options) or bool(self.torch and self.torch.compiles)


class Mechanism(Protocol):
    """How one library lists a backend's devices. Modules in `devices/_mechanisms/` implement it."""

    def load(self, library: str) -> Any:
        """Import the library. Raises ImportError, OSError, and what a broken build raises."""

    def versions(self, library: str) -> dict[str, str]:
        """Return the versions of the imported packages."""

    def enumerate_devices(self, backend: Backend, library: str) -> list[DetectedDevice]:
        """List the backend's devices. Raises DeviceAbsent with the reason if there is none."""

    def free_bytes(self, backend: Backend, detected: DetectedDevice) -> int | None:
        """Return the device's free memory, None if the library does not report it."""


class Prover(Protocol):
    """How one library proves a device. The `*_proof` modules in `devices/_mechanisms/` implement it."""

    def prove(self, backend: Backend, detected: DetectedDevice, on_step: Callable[[str], None]) -> Proof:
        """Compute on the device and compare.

        `on_step` is called with each data type before it is checked. Data types that fail are in `Proof.unusable`,
        except float32. Raises WrongResult, DeviceAbsent, and what the library raises.
        """
