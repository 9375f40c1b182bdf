"""A place on a device for sessions of ONNX Runtime, with evidence of which provider got each node.

Sessions are made for a listed device, never by a list of providers, which falls back to the processor without a word.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.common.device_api import DetectedDevice
from backend.common.system.resources import usable_threads
from backend.common.types import Placement, PlacementPart
from backend.devices._mechanisms.lookup import served

_PROCESSOR = "cpuexecutionprovider"
_SPIN_US = "7"  # at rest as fast as milliseconds of it (2 cores); beside a busy program between those and none
_SPINS_BRIEFLY_FROM = (1, 26)  # versions before know no limit and ignore the setting


@dataclass
class OnnxPlace:
    """Makes sessions on one device. `provider` is the library's own name for what serves it."""

    onnxruntime: Any
    device: str
    provider: str
    ep_device: Any
    file: Any
    options: Mapping[str, Any] = field(default_factory=dict)  # the user's, for the provider
    cache: str = ""  # a folder for what the provider compiles

    @property
    def is_processor(self) -> bool:
        """Whether the device is the processor itself, through ONNX Runtime's own kernels."""
        return self.provider.lower() == _PROCESSOR

    def session(
        self,
        model: bytes | str | os.PathLike[str],
        threads: int | None = None,
        strict: bool = False,
        provider_options: Mapping[str, Any] | None = None,
        dimensions: Mapping[str, int] | None = None,
        libraries: Iterable[str] = (),
        folder: Path | None = None,
    ) -> Any:
        """An InferenceSession for a model's bytes or path on this device.

        `dimensions` of its inputs, by name, are fixed. `strict` refuses a model of which one node would run elsewhere.
        `libraries` bring operators of their own; `folder` is where the outside data of a model given as bytes lies.
        Raises what ONNX Runtime raises.
        """
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or usable_threads()  # 0 would set affinities that a core mask forbids
        options.inter_op_num_threads = 1
        self._limit_spinning(options)
        options.log_severity_level = 3
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, size in (dimensions or {}).items():
            options.add_free_dimension_override_by_name(name, size)
        for library in libraries:
            options.register_custom_ops_library(library)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        if prepare := getattr(self.file, "prepare_session", None):
            prepare(options)
        if strict:  # some versions keep no record of what a plugin gets
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(tempfile.gettempdir()) / f"touchstone-{os.getpid()}")
        if (strict or self.ep_device is None) and not self.is_processor:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        kept = getattr(self.file, "cache_options", None)
        compiled = kept(self.cache, self.provider) if kept and self.cache else {}
        chosen = {
            str(name): str(value) for name, value in {**compiled, **self.options, **(provider_options or {})}.items()
        }
        providers = None
        if self.ep_device is not None:
            options.add_provider_for_devices([self.ep_device], chosen)
        else:  # the processor, or an older provider that lists no devices: alone in its list, without fallback
            providers = [(self.provider, chosen)]
        source = model if isinstance(model, bytes) else os.fspath(model)
        # By itself it would try again on the processor when a provider fails.
        return self.onnxruntime.InferenceSession(source, sess_options=options, providers=providers, enable_fallback=0)

    def bare_session(self, model: str | os.PathLike[str], threads: int, libraries: Iterable[str] = ()) -> Any:
        """A session as the library's documents make it, with but the threads and spinning of ours, to compare with."""
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._limit_spinning(options)
        for library in libraries:
            options.register_custom_ops_library(library)
        if self.ep_device is None:
            return self.onnxruntime.InferenceSession(os.fspath(model), options, [self.provider])
        options.add_provider_for_devices([self.ep_device], {})
        return self.onnxruntime.InferenceSession(os.fspath(model), options)

    def _limit_spinning(self, options: Any) -> None:
        """Lets threads wait for the next operator by spinning, but only within a run, and for microseconds.

        By themselves they spin for milliseconds, also after a run, and take the core that other processes need: twice
        the processor time, and beside two busy programs on two cores 10 times slower (2 ms became 20 for a step of the
        music model). Without any, a step of text on 2 cores at rest was 10 % longer.
        """
        version = tuple(int(part) for part in str(self.onnxruntime.__version__).split(".")[:2])
        spins = version >= _SPINS_BRIEFLY_FROM
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
        if spins:
            options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
            options.add_session_config_entry("session.force_spinning_stop", "1")

    @property
    def exact_options(self) -> Mapping[str, Any] | None:
        """The provider's options with which float32 is computed as float32; None where it has none."""
        return getattr(self.file, "PROOF_OPTIONS", None)

    @property
    def rounds_inputs(self) -> bool:
        """Whether float32 is computed here with inputs of fewer bits."""
        return bool(getattr(self.file, "ROUNDS_INPUTS", False))

    @property
    def compiles_shapes(self) -> bool:
        """Whether each new shape of an input is compiled for itself, or none but fixed ones are taken."""
        return bool(getattr(self.file, "COMPILES_SHAPES", False))

    @property
    def memory(self) -> tuple[str, int, int] | None:
        """The device's own memory as OrtValue names it: type, index, vendor. None where tensors lie in the host's."""
        if self.ep_device is None or not hasattr(self.ep_device, "memory_info"):
            return None
        own = self.ep_device.memory_info(self.onnxruntime.OrtDeviceMemoryType.DEFAULT)
        kind = str(self.ep_device.device.type).rpartition(".")[2].lower()
        return None if own is None or kind == "cpu" else (kind, own.device_id, own.device_vendor_id)

    def placement(self, sessions: Iterable[Any]) -> Placement:
        """Where the nodes of these sessions run, by ONNX Runtime's own record of its decision."""
        nodes: Counter[str] = Counter()
        for session in sessions:
            nodes += self.nodes(session)
        total = sum(nodes.values())
        if not total:
            return Placement(None, [], "This ONNX Runtime does not record which provider gets which node.")
        parts = [PlacementPart(where, count / total) for where, count in nodes.most_common()]
        return Placement(
            nodes[self.device] / total,
            parts,
            f"ONNX Runtime's record of the assignment: {nodes[self.device]} of {total} nodes on {self.provider}.",
        )

    def nodes(self, session: Any) -> Counter[str]:
        """Number of nodes by device, from ONNX Runtime's record; empty from a version that keeps none."""
        found: Counter[str] = Counter()
        if hasattr(session, "get_provider_graph_assignment_info"):
            for part in session.get_provider_graph_assignment_info():
                found[self.where(part.ep_name)] += len(part.get_nodes())
        return found

    def nodes_run(self, session: Any) -> tuple[Counter[str], str]:
        """Number of nodes by device of a `strict` session that has run, and the source: record, else profile."""
        path = Path(session.end_profiling())
        try:
            if recorded := self.nodes(session):
                return recorded, "record"
            events = json.loads(path.read_text(encoding="utf-8"))
            ran = {
                (event["name"], event["args"]["provider"]) for event in events if event.get("args", {}).get("provider")
            }
            return Counter(self.where(provider) for _, provider in ran), "profile"
        except OSError:
            return Counter(), "profile"
        finally:
            path.unlink(missing_ok=True)

    def where(self, provider: str) -> str:
        """The device that a provider stands for: this one, the processor, or the provider's own name."""
        if provider == self.provider:
            return self.device
        return "cpu" if provider.lower() == _PROCESSOR else provider


def open_place(device: str, found: DetectedDevice | None, options: Mapping[str, Any], cache: str) -> OnnxPlace:
    """The place of a device id. Raises Absent, DeviceNotReady."""
    here, name, listed = served(device, found, "onnxruntime", "ONNX Runtime")
    place: OnnxPlace = here.place(name, listed, device)
    return replace(place, options=options, cache=cache)
