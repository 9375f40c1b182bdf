"""An open device for sessions of ONNX Runtime, with evidence of which provider runs each node.

Sessions are created for a listed device, never by a list of providers: that would silently fall back to the processor.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.common.device_api import OnnxProvider
from backend.common.system.resources import usable_threads
from backend.common.types import Placement, PlacementPart

_PROCESSOR = "cpuexecutionprovider"
_SPIN_US = "7"  # on 2 idle cores as fast as milliseconds; next to a busy program between those and no spinning
_SPIN_LIMIT_SINCE = (1, 26)  # older versions ignore the setting


def remove_profiles() -> None:
    """Delete the profiles of this process's `strict` sessions: one whose creation or run fails leaves its file."""
    prefix = _profile_prefix()
    for path in prefix.parent.glob(f"{prefix.name}_*.json"):
        with contextlib.suppress(OSError):
            path.unlink()


def _profile_prefix() -> Path:
    return Path(tempfile.gettempdir()) / f"touchstone-{os.getpid()}"


@dataclass
class OnnxPlace:
    """A device that sessions of ONNX Runtime run on. `provider` is ONNX Runtime's full name of the provider."""

    onnxruntime: Any
    device: str
    provider: str
    ep_device: Any
    provider_facts: OnnxProvider
    options: Mapping[str, Any] = field(default_factory=dict)  # the user's options for the provider
    cache: str = ""  # optional, a folder for what the provider compiles

    @property
    def _needs_profile(self) -> bool:
        """Whether only a profile may show which nodes ran: some versions record none, or none of a plug-in provider."""
        has_record = hasattr(self.onnxruntime.InferenceSession, "get_provider_graph_assignment_info")
        return not has_record or not self.is_processor

    @property
    def is_processor(self) -> bool:
        """Whether the device is the processor, through ONNX Runtime's own kernels."""
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
        """Return an InferenceSession for a model's bytes or path on this device.

        `threads`: optional. Default: all usable threads. `strict`: raise an exception if a node would run elsewhere.
        `dimensions`: optional, values that replace symbolic input dimensions, by name. `libraries`: optional, paths of
        libraries with custom operators. `folder`: optional, the folder of the external data of a model given as bytes.
        Raises what ONNX Runtime raises.
        """
        options = self.onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or usable_threads()  # 0 would set affinities that a CPU mask may forbid
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
        if self.provider_facts.prepare_session:
            self.provider_facts.prepare_session(options)
        if strict and self._needs_profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(_profile_prefix())
        if (strict or self.ep_device is None) and not self.is_processor:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        cache_options = self.provider_facts.cache_options
        compiled = cache_options(self.cache, self.provider) if cache_options and self.cache else {}
        chosen = {
            str(name): str(value) for name, value in {**compiled, **self.options, **(provider_options or {})}.items()
        }
        providers = None
        if self.ep_device is not None:
            options.add_provider_for_devices([self.ep_device], chosen)
        else:  # the processor, or an older provider that lists no devices: the only entry, without fallback
            providers = [(self.provider, chosen)]
        source = model if isinstance(model, bytes) else os.fspath(model)
        # By default ONNX Runtime retries on the processor when a provider fails.
        return self.onnxruntime.InferenceSession(source, sess_options=options, providers=providers, enable_fallback=0)

    def bare_session(self, model: str | os.PathLike[str], threads: int, libraries: Iterable[str] = ()) -> Any:
        """Return a session as in ONNX Runtime's documentation, with our threads and spinning, for comparison."""
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
        """Let threads spin for microseconds while they wait for the next operator, and only during a run.

        By default they spin for milliseconds, also after a run, and block cores that other processes need: twice the
        processor time, and next to two busy programs on two cores 10 times the latency (a step of the music model took
        20 ms instead of 2). Without spinning, a decode step of text on 2 idle cores took 10 % longer.
        """
        version = tuple(int(part) for part in str(self.onnxruntime.__version__).split(".")[:2])
        can_limit = version >= _SPIN_LIMIT_SINCE
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(can_limit)))
        if can_limit:
            options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
            options.add_session_config_entry("session.force_spinning_stop", "1")

    @property
    def exact_options(self) -> Mapping[str, Any] | None:
        """Provider options under which float32 is computed as float32, None if there are none."""
        return self.provider_facts.proof_options

    @property
    def rounds_inputs(self) -> bool:
        """Whether the provider rounds the inputs of float32 operations to fewer bits."""
        return self.provider_facts.rounds_inputs

    @property
    def compiles_shapes(self) -> bool:
        """Whether the provider compiles each new input shape, or accepts only fixed shapes."""
        return self.provider_facts.compiles_shapes

    @property
    def memory(self) -> tuple[str, int, int] | None:
        """The device's memory as OrtValue names it: type, index, vendor. None if tensors stay in host memory."""
        if self.ep_device is None or not hasattr(self.ep_device, "memory_info"):
            return None
        own = self.ep_device.memory_info(self.onnxruntime.OrtDeviceMemoryType.DEFAULT)
        kind = str(self.ep_device.device.type).rpartition(".")[2].lower()
        return None if own is None or kind == "cpu" else (kind, own.device_id, own.device_vendor_id)

    def placement(self, sessions: Iterable[Any]) -> Placement:
        """Return where the nodes of these sessions run, by ONNX Runtime's record of its assignment."""
        nodes: Counter[str] = Counter()
        for session in sessions:
            nodes += self.nodes(session)
        total = sum(nodes.values())
        if not total:
            return Placement(None, [], "This version of ONNX Runtime does not record which provider runs which node.")
        parts = [PlacementPart(where, count / total) for where, count in nodes.most_common()]
        return Placement(
            nodes[self.device] / total,
            parts,
            f"ONNX Runtime's record of the assignment: {nodes[self.device]} of {total} nodes on {self.provider}.",
        )

    def nodes(self, session: Any) -> Counter[str]:
        """Return the number of nodes by device, from ONNX Runtime's record; empty if this version has no record."""
        counts: Counter[str] = Counter()
        if hasattr(session, "get_provider_graph_assignment_info"):
            for part in session.get_provider_graph_assignment_info():
                counts[self.where(part.ep_name)] += len(part.get_nodes())
        return counts

    def nodes_run(self, session: Any) -> tuple[Counter[str], str]:
        """Return the number of nodes by device of a `strict` session after a run, and the source: record or profile."""
        if not self._needs_profile:
            return self.nodes(session), "record"
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
        """Return the device that a provider means: this one, the processor, or the provider's own name."""
        if provider == self.provider:
            return self.device
        return "cpu" if provider.lower() == _PROCESSOR else provider
