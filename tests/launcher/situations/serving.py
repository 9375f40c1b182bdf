"""The start of the server, and the server itself."""
# ruff: noqa: E501 (the words stand as they are seen)

from __future__ import annotations

from tests.launcher.situations.kinds import SERVE, SERVER, START, Situation

SITUATIONS = (
    Situation(
        START,
        "no display to open a browser on",
        ("Touchstone is ready: http://127.0.0.1:…", "touchstone: No display for a browser was found: open …"),
        run='env -u DISPLAY -u WAYLAND_DISPLAY "$F/launch_wsl.sh"',
        serves=True,
    ),
    Situation(
        START,
        "the default model cannot be fetched",
        (
            "touchstone: The test model could not be downloaded; the server starts without it, and the next start retries.",
            "Touchstone is ready: http://127.0.0.1:…",
        ),
        run=SERVE,
        plan={"fetch": 1},
        serves=True,
    ),
    Situation(
        START,
        "a server that ends at once",
        ("touchstone: The server ended before it was ready, with exit code 42; see its messages above.",),
        run=SERVE,
        plan={"crash": 42},
        code=42,
    ),
    Situation(
        START,
        "a server that takes its time",
        ("touchstone: Waiting for the server to answer at http://127.0.0.1:… (5 s) ...", "Touchstone is ready: http://…"),
        run=SERVE,
        plan={"sick_s": 6},
        serves=True,
    ),
    Situation(
        START,
        "--gpu without a value",
        ("touchstone: --gpu needs a value.", "touchstone: Give auto, none or a runtime's name, as in --gpu none."),
        run=SERVE + " --gpu",
        code=2,
    ),
    Situation(
        SERVER,
        "the port is taken",
        ("touchstone: Port … is taken by another program.", "  Start with --port …, or stop the other program."),
        run="--port $TAKEN",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "another address than this machine's own, without a token",
        ("touchstone: …0.0.0.0…",),
        run="--host 0.0.0.0 --port 0",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "a setting that does not exist",
        ("touchstone: …devise…", "…device…"),
        'echo "devise: cpu" >$T/config.yaml',
        "--port 0 --config $T/config.yaml",
        code=2,
        real=True,
    ),
    Situation(
        SERVER,
        "a data folder that cannot be made",
        ("touchstone: The data folder …/file/data cannot be used: …", "  Set TOUCHSTONE_DATA_DIR to a folder that you may …"),
        "touch $T/file",
        "--port 0 --data-dir $T/file/data",
        code=2,
        real=True,
    ),
)  # fmt: skip
