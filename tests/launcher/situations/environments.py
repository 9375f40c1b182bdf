"""Variables, environments, and the network with its proxies and certificates."""
# ruff: noqa: E501 (the words stand as they are seen)

from __future__ import annotations

from tests.launcher.situations.kinds import DEAD, ENVIRONMENT, HTTPS, INDEX, NETWORK, SERVE, WORKS, Situation, python

SITUATIONS = (
    Situation(
        ENVIRONMENT,
        "a shell of conda",
        WORKS,
        python("python3"),
        env={"CONDA_PREFIX": "/opt/conda", "CONDA_DEFAULT_ENV": "base", "CONDA_SHLVL": "1"},
        tools=True,
    ),
    Situation(
        ENVIRONMENT,
        "PYTHONPATH with a module that shadows ours",
        WORKS,
        "mkdir $T/stray; echo 'raise SystemExit(\"stray\")' | tee $T/stray/json.py >$T/stray/ballast.py",
        'PYTHONPATH=$T/stray "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(ENVIRONMENT, "PYTHONHOME of another installation", WORKS, env={"PYTHONHOME": "/nowhere"}),
    Situation(
        ENVIRONMENT,
        "packages of the user's own site",
        WORKS,
        "d=$T/home/.local/lib/python$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])')/site-packages\n"
        "mkdir -p $d; echo 'raise SystemExit(\"leaked\")' | tee $d/usercustomize.py >$d/ballast.py",
        'HOME=$T/home "$F/launch_wsl.sh" echo <<<launched',
    ),
    Situation(ENVIRONMENT, "no HOME", WORKS, run='env -u HOME "$F/launch_wsl.sh" echo <<<launched'),
    Situation(ENVIRONMENT, "the locale C", WORKS, env={"LC_ALL": "C", "LANG": "C"}),
    Situation(
        ENVIRONMENT,
        "pip set to install elsewhere (PIP_TARGET, PIP_USER)",
        ("touchstone: Installing the packages of requirements.txt; this takes a minute or two ...", *WORKS),
        'echo "# changed" >>"$F/requirements.txt"; rm -r "$F"/.venv/lib/*/site-packages/ballast*',
        env={"PIP_TARGET": "/nowhere", "PIP_USER": "1"},
    ),
    Situation(
        ENVIRONMENT,
        "packages gone from .venv",
        ("touchstone: .venv has lost packages (ballast.py); recreating it.", *WORKS),
        'rm "$F"/.venv/lib/*/site-packages/ballast.py',
    ),
    Situation(
        ENVIRONMENT,
        "the Python of .venv gone, as after an upgrade of the system",
        ("touchstone: .venv is unusable after an interrupted start or a change of Python; recreating it.", *WORKS),
        'rm "$F"/.venv/bin/python*; ln -s /nowhere/python3 "$F/.venv/bin/python"',
    ),
    Situation(
        ENVIRONMENT,
        "a .venv that is a link to a folder which is gone",
        ("touchstone: Creating {folder}/.venv with Python …", *WORKS),
        'rm -r "$F/.venv"; ln -s /nowhere/venv "$F/.venv"',
    ),
    Situation(
        ENVIRONMENT,
        "a file called .venv",
        ("touchstone: {folder}/.venv is a file, but the environment needs that name.", "touchstone: Rename or remove it."),
        'touch "$F/.venv"',
        code=1,
        bare=True,
    ),
    Situation(
        ENVIRONMENT,
        "a .venv that Windows made",
        ("touchstone: {folder}/.venv was created by Windows.", "touchstone: A folder works for one system only: …"),
        'mkdir -p "$F/.venv/Scripts"',
        code=1,
        bare=True,
    ),
    Situation(
        ENVIRONMENT,
        "a .venv that another program created, without pip",
        (
            "touchstone: {folder}/.venv exists, was not created by this launcher, and has no Python 3.11 to 3.14 with pip.",
            "touchstone: Rename or remove that folder and start again.",
        ),
        'mkdir -p "$F/.venv/bin"; touch "$F/.venv/bin/python"',
        code=1,
        bare=True,
    ),
    Situation(
        NETWORK,
        "none, at the first start",
        (
            "touchstone: The package index cannot be reached, or the connection broke: …",
            "touchstone: Connect this machine, then start again; later starts need no network. Behind a proxy set …",
        ),
        INDEX,
        env={"PIP_RETRIES": "1"},
        code=1,
    ),
    Situation(NETWORK, "none, at a later start", WORKS, env={"PIP_INDEX_URL": DEAD, "HTTPS_PROXY": DEAD}),
    Situation(
        NETWORK,
        "a proxy that is not there",
        ("touchstone: The proxy did not connect to the package index: …", "touchstone: Correct HTTPS_PROXY …"),
        HTTPS,
        env={"PIP_RETRIES": "1", "HTTPS_PROXY": DEAD, "https_proxy": DEAD},
        code=1,
    ),
    Situation(
        NETWORK,
        "a SOCKS proxy",
        ("touchstone: The proxy of the environment is a SOCKS proxy, which pip cannot use without another package: …",),
        HTTPS,
        env={"PIP_RETRIES": "0", "HTTPS_PROXY": "socks5://127.0.0.1:9", "https_proxy": "socks5://127.0.0.1:9"},
        code=1,
    ),
    Situation(
        NETWORK,
        "no package for this Python or system",
        ("touchstone: The package index has no package for this Python and machine, only …", "touchstone: No ready-made package fits Python …"),
        'printf -- \'--no-index\\n--find-links ./wheels\\nballast>=99\\n\' >"$F/requirements.txt"',
        code=1,
    ),
    Situation(
        NETWORK,
        "a proxy for everything: the own health check does not go through it",
        ("Touchstone is ready: http://127.0.0.1:…",),
        run=SERVE,
        env={"http_proxy": DEAD, "HTTP_PROXY": DEAD, "ALL_PROXY": DEAD, "no_proxy": ""},
        serves=True,
    ),
)  # fmt: skip
