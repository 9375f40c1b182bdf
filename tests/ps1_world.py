"""A simulated Windows for launch.ps1: installed programs, running commands, and the expected result.

Each scenario runs the script in `ps1_language`, as Windows PowerShell 5.1 and as PowerShell 7 would.
"""

from __future__ import annotations

import builtins
import fnmatch
import ntpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tree_sitter import Node

from tests.ps1_language import Interpreter
from tests.ps1_values import Exited, Members, NotUnderstood, PowerShellError

CHECK = (Path(__file__).resolve().parents[1] / "backend/cli/launcher/interpreter.py").read_text(encoding="utf-8")
HOME = r"C:\Users\Jürgen & Co [x]\a b"
NEEDED = (
    "touchstone: Python 3.11 to 3.14 (64-bit) is required but was not found. Install it with:",
    "touchstone:     winget install --exact --id Python.Python.3.13",
    "touchstone: or, with uv: uv python install 3.13",
    "touchstone: Then open a new window and repeat this command.",
)
MISSING = f"touchstone: {HOME} has no backend\\cli\\launcher: run the script in a complete copy of the repository."


@dataclass(frozen=True)
class Python:
    """An interpreter: whether the script's check lets it pass is found by running that check with these facts."""

    version: tuple[int, int] = (3, 13)
    bits: int = 64
    lacks: str = ""
    starts: bool = True  # False: a program that Windows cannot start at all
    store: bool = False  # the Store's stub of the same name
    warns: bool = False  # writes a line to standard error though all is well
    options: tuple[str, ...] = ()  # of the launcher `py`: the versions that it knows
    arm: bool = False  # built for Windows on ARM

    def check(self) -> tuple[int, str]:
        """The exit code and the output of interpreter.py."""
        said: list[str] = []
        facts = SimpleNamespace(
            version_info=(*self.version, 0),
            maxsize=2 ** (self.bits - 1) - 1,
            platform="win32",
            argv=["interpreter.py"],
            stdout=SimpleNamespace(write=said.append),
            exit=_leave,
        )
        modules = {
            "sys": facts,
            "sysconfig": SimpleNamespace(get_platform=lambda: "win-arm64" if self.arm else "win-amd64"),
            "platform": SimpleNamespace(machine=lambda: "ARM64"),
        }

        def imported(name: str, *_: Any) -> Any:
            if name == self.lacks:
                raise ImportError(name)
            return modules.get(name)

        try:
            # What the script runs, with the facts of this machine.
            exec(CHECK, {"__builtins__": {**vars(builtins), "__import__": imported}, "__name__": "__main__"})  # noqa: S102
        except SystemExit as ended:
            return int(ended.code or 0), "".join(said).strip()
        raise AssertionError("interpreter.py ends with an exit code")


def _leave(code: Any) -> None:
    raise SystemExit(int(code))


@dataclass
class Windows:
    """One machine."""

    programs: Mapping[str, Python]
    arguments: tuple[str, ...] = ("--port", "0", "a b", "")
    ends_with: int = 7
    script: str = HOME + r"\launch.ps1"
    link: tuple[str, str] | None = None  # (LinkType, Target)
    folder: str | None = HOME  # where backend\cli\launcher lies
    uv_finds: str = ""
    says: tuple[str, ...] = ()  # what must be written besides
    modern: bool = False
    ran: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    output: list[Any] = field(default_factory=list)

    def cmdlet(self, name: str, named: Mapping[str, Any], placed: Sequence[Any], piped: list[Any]) -> list[Any]:
        """Those that the script uses; one whose arguments are not known here is not understood."""
        handler = getattr(self, "_" + name.replace("-", "_"), None)
        if handler is None:
            raise NotUnderstood(name)
        result: list[Any] = handler(dict(named), list(placed), piped)
        return result

    def _set_strictmode(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        return []

    def _get_item(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        literal = named.get("literalpath") == self.script
        if not literal and not fnmatch.fnmatchcase(self.script, str(_wild(named, placed))):
            raise PowerShellError("the script does not exist")
        kind, target = self.link or (None, None)
        return [Members(linktype=kind, target=target if self.modern or target is None else [target])]

    def _join_path(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        return [ntpath.join(named["path"], named["childpath"])]

    def _split_path(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        if named.get("parent") is not True:
            raise NotUnderstood("Split-Path without -Parent")
        return [ntpath.dirname(named["path"])]

    def _test_path(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        there = None if self.folder is None else ntpath.normpath(self.folder + r"\backend\cli\launcher")
        if "literalpath" in named:
            return [there == ntpath.normpath(named["literalpath"])]
        return [there is not None and fnmatch.fnmatchcase(there, str(_wild(named, placed)))]

    def _get_command(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        if not named["name"]:
            raise PowerShellError("Get-Command takes no empty name")
        found = str(named["name"]) in self.programs
        if not found and str(named.get("erroraction", "Stop")).lower() != "silentlycontinue":
            raise PowerShellError(f"{named['name']} is not found")
        return [Members(name=named["name"])] if found and named.get("commandtype") == "Application" else []

    def _select_object(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        if not named.keys() <= {"skip", "first", "last"} or placed:
            raise NotUnderstood("Select-Object")
        if "last" in named:
            return piped[-named["last"] :]
        rest = piped[named.get("skip", 0) :]
        return rest[: named["first"]] if "first" in named else rest

    def _out_null(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        return []

    def _write_host(self, named: dict[str, Any], placed: list[Any], piped: list[Any]) -> list[Any]:
        self.output += placed  # 5.1 and a redirected standard output: it would mix with the verb's own
        return []

    def member(self, owner: Any, name: str, arguments: Sequence[Any] | None) -> Any:
        """Properties, and the few methods."""
        if isinstance(owner, Members) and arguments is None:
            if name not in owner:
                raise PowerShellError(f"strict mode: no property {name}")
            return owner[name]
        if owner == "[console]" and arguments is None and name == "error":
            return "[console]::error"
        if owner == "[console]::error" and name == "writeline" and arguments is not None:
            self.errors.append(str(arguments[0]))
            return []  # a method that returns nothing adds nothing to the output
        if owner == "[system.io.path]" and name == "ispathrooted" and arguments is not None:
            return ntpath.isabs(str(arguments[0]))
        if isinstance(owner, str) and name == "split" and arguments is not None:
            return owner.split(str(arguments[0]))
        raise NotUnderstood(f"{owner!r}.{name}")

    def runs(self, program: str) -> bool:
        """Whether Windows can start it."""
        return program in self.programs and self.programs[program].starts

    def program(self, name: str, arguments: Sequence[str]) -> tuple[int, list[str], str]:
        """Exit code, standard output, and what stands on standard error."""
        one, words = self.programs[name], list(arguments)
        if name == "uv":
            fits = words == ["python", "find", "--no-project", ">=3.11,<3.15"]
            return (0, [self.uv_finds], "warning") if fits and self.uv_finds else (2, [], "error: No interpreter found")
        if one.store:
            return 9009, [], "Python was not found; run without arguments to install from the Microsoft Store"
        if one.options and words[0] not in one.options:
            return 103, [], "No suitable Python runtime found"
        plain = words[1:] if one.options else words
        if len(plain) == 2 and plain[0] == "-I" and plain[1].endswith(r"\interpreter.py"):
            code, said = one.check()
            return code, ["a line of the site's own", said], "Traceback" if code or one.warns else ""
        self.ran.append((name, tuple(words)))
        return self.ends_with, [], ""

    def complain(self, line: str) -> None:
        """What a program wrote to a standard error that nothing silences."""
        self.errors.append(line)

    def write(self, output: Sequence[Any]) -> None:
        """What nobody took."""
        self.output += output


def _wild(named: dict[str, Any], placed: list[Any]) -> Any:
    """A path in which brackets mean a choice of characters, as wherever it is not literal."""
    return named.get("path", placed[0] if placed else None)


GOOD = Python()
OLD = Python((3, 10))
UVS = r"C:\uv\python.exe"
PY = Python(options=("-3.13", "-3.12", "-3.11", "-3"))
NEW = Python((3, 15))
TOO_NEW = "touchstone: Python 3.15 is not supported: the packages exist for 3.11 to 3.14."
ON_ARM = "touchstone: Python 3.11 for Windows on ARM is not supported: the packages exist for 3.12 to 3.14."
MODULES = ("venv", "ensurepip", "sqlite3", "ctypes")
LAUNCHER = HOME + r"\backend\cli\launcher"


def _runs(program: str, *options: str, launcher: str = LAUNCHER) -> tuple[str, tuple[str, ...]]:
    return program, (*options, "-I", launcher)


# What is there, what must be started with the user's arguments behind it, or None if nothing can be.
SCENARIOS: dict[str, tuple[Windows, tuple[str, tuple[str, ...]] | None]] = {
    "py with the newest": (Windows({"py": PY, "python": OLD}), _runs("py", "-3.13")),
    "py that knows 3.11 alone": (Windows({"py": Python((3, 11), options=("-3.11", "-3"))}), _runs("py", "-3.11")),
    "py whose 3.12 lacks ssl": (
        Windows({"py": Python((3, 12), options=("-3.12",), lacks="ssl"), "python": GOOD}),
        _runs("python"),
    ),
    "py with a newer one only": (Windows({"py": Python((3, 14), options=("-3",))}), _runs("py", "-3")),
    "py with 3.14, next to a python that is too new": (
        Windows({"py": Python((3, 14), options=("-3.14",)), "python": NEW}),
        _runs("py", "-3.14"),
    ),
    "too new, and python3": (
        Windows({"python": NEW, "python3": GOOD}, says=(f"{TOO_NEW} Using python3 instead.",)),
        _runs("python3"),
    ),
    "too new, and uv's": (
        Windows({"python": NEW, "uv": GOOD, UVS: GOOD}, uv_finds=UVS, says=(f"{TOO_NEW} Using uv instead.",)),
        _runs(UVS),
    ),
    "too new alone": (Windows({"python": NEW}, says=(TOO_NEW,)), None),
    "ARM with 3.11, and a newer one": (
        Windows(
            {"py": Python((3, 11), arm=True, options=("-3.11",)), "python": Python((3, 12), arm=True)},
            says=(f"{ON_ARM} Using python instead.",),
        ),
        _runs("python"),
    ),
    "3.11 of x64 on ARM": (Windows({"python": Python((3, 11))}), _runs("python")),
    "python alone": (Windows({"python": Python((3, 11))}), _runs("python")),
    "python that warns": (Windows({"python": Python(warns=True)}), _runs("python")),
    "the Store's stub, and python3": (Windows({"python": Python(store=True), "python3": GOOD}), _runs("python3")),
    "a program that does not start, and python3": (
        Windows({"python": Python(starts=False), "python3": GOOD}),
        _runs("python3"),
    ),
    "uv's alone": (Windows({"uv": GOOD, UVS: GOOD}, uv_finds=UVS), _runs(UVS)),
    "uv with an old one": (Windows({"uv": GOOD, "C:\\p": OLD}, uv_finds="C:\\p"), None),
    "uv without any": (Windows({"uv": GOOD}), None),
    "uv that does not start": (Windows({"uv": Python(starts=False)}), None),
    "nothing": (Windows({}), None),
    "the Store's stub alone": (Windows({"python": Python(store=True), "python3": Python(store=True)}), None),
    "too old": (Windows({"py": Python((3, 10), options=("-3",)), "python": OLD}), None),
    "32 bits": (Windows({"python": Python(bits=32)}), None),
    **{f"without {name}": (Windows({"python": Python(lacks=name)}), None) for name in MODULES},
    "no arguments, exit code 0": (Windows({"py": PY}, arguments=(), ends_with=0), _runs("py", "-3.13")),
    "a link from elsewhere": (
        Windows({"py": PY}, script=r"D:\links\go.ps1", link=("SymbolicLink", HOME + r"\launch.ps1")),
        _runs("py", "-3.13"),
    ),
    "a relative link": (
        Windows({"py": PY}, script=r"D:\links\go.ps1", link=("SymbolicLink", r"..\ts\launch.ps1"), folder=r"D:\ts"),
        _runs("py", "-3.13", launcher=r"D:\links\..\ts\backend\cli\launcher"),
    ),
    "a hard link is no link": (
        Windows({"python": GOOD}, link=("HardLink", r"D:\elsewhere\launch.ps1")),
        _runs("python"),
    ),
}


INCOMPLETE = Windows({"py": PY}, script=r"D:\links\go.ps1", link=("SymbolicLink", HOME + r"\launch.ps1"), folder=None)


def deviations(root: Node) -> Iterator[str]:
    """Each scenario in which the script does something else than it must."""
    for name, (machine, expected) in {**SCENARIOS, "an incomplete copy": (INCOMPLETE, None)}.items():
        for modern in (False, True):
            shell = "PowerShell 7" if modern else "Windows PowerShell 5.1"
            if trouble := _deviation(root, machine, expected, modern):
                yield f"{name}, {shell}: {trouble}"


def _deviation(root: Node, machine: Windows, expected: tuple[str, tuple[str, ...]] | None, modern: bool) -> str | None:
    machine.ran.clear()
    machine.errors.clear()
    machine.output.clear()
    machine.modern = modern
    places = {"$pscommandpath": machine.script, "$psscriptroot": ntpath.dirname(machine.script)}
    variables: dict[str, Any] = {**places, "$args": list(machine.arguments), "$erroractionpreference": "Continue"}
    if modern:
        variables["$psnativecommanduseerroractionpreference"] = True
    try:
        code = Interpreter(machine, modern).run(root, variables)
    except NotUnderstood as what:
        return f"not understood: {what}"
    except (PowerShellError, Exited, RecursionError, KeyError, ValueError, TypeError) as error:
        return f"it ends with an error: {error}"
    if expected is None:
        words = NEEDED if machine.folder else (MISSING,)
        wanted: tuple[Any, ...] = ([], [*machine.says, *words], 1)
    else:
        wanted = ([(expected[0], (*expected[1], *machine.arguments))], list(machine.says), machine.ends_with)
    got = (machine.ran, machine.errors, code)
    if got != wanted:
        return f"it ran {got[0]}, said {got[1]} and ended with {got[2]}, where {wanted} is right"
    return f"it wrote {machine.output} to standard output, which is the verb's" if machine.output else None
