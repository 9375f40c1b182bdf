"""Package list of the wheel; everything else is in pyproject.toml.

The wheel holds `frontend/` inside the package as `backend/frontend/`, which pyproject.toml cannot express together with
a search for packages.
"""

from setuptools import find_packages, setup

PROGRAMS = ["backend.tasks.music.tools*"]  # train the music model; run in a checkout only

setup(
    packages=[
        *find_packages(include=["backend", "backend.*"], exclude=PROGRAMS),
        "backend.frontend",
    ],
    package_dir={"backend.frontend": "frontend"},
)
