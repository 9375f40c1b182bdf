"""Redaction: names and secrets are removed from a report, and everything else stays."""

from __future__ import annotations

import json
import random
import string

import pytest

from backend.common.redaction import Redactor, redactor

ALPHABET = string.ascii_letters + string.digits
# How services write their keys; `#` stands for random letters and digits.
SHAPES = (
    "hf_" + "#" * 34,
    "ghp_" + "#" * 36,
    "github_pat_" + "#" * 30,
    "glpat-" + "#" * 20,
    "sk-" + "#" * 48,
    "sk-proj-" + "#" * 40,
    "sk_live_" + "#" * 24,
    "npm_" + "#" * 36,
    "pypi-" + "#" * 60,
    "nvapi-" + "#" * 40,
    "xoxb-" + "#" * 24,
    "AIza" + "#" * 35,
    "eyJ" + "#" * 20 + "." + "#" * 40 + "." + "#" * 30,
)
# How they come into what a library prints.
PLACES = (
    "{}",
    "401 Client Error for url: https://example.org/model?token={}&x=1",
    "Authorization: Bearer {}",
    "{{'Authorization': 'Bearer {}'}}",
    "HF_TOKEN={}",
    "api_key: '{}'",
    '"client_secret": "{}", "n": 3',
    "password = {}; retrying",
    "http://127.0.0.1:8000/#token={}",
    "fetching https://ada:{}@example.org/simple/ failed",
)
PLAIN = (
    "SmolLM2 135M Instruct (Q4_1) is not on this machine yet.",
    "max_tokens=256, first_token_s=0.11, tokenizer.json, the token budget",
    "libgomp.so.1: cannot open shared object file: No such file or directory",
    "pci:0000:01:00.0: NVIDIA GeForce RTX 4090 (gpu, memory 24.0 GB, driver nvidia 580.95.05)",
    "Linux-6.6.87.2-microsoft-standard-WSL2-x86_64-with-glibc2.39",
    "python -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu130",
    "http://127.0.0.1:8000, torch==2.13.0+cu130, numpy@2.4.6, 2026-01-01T00:00:00.000Z",
    "/usr/lib/wsl/lib/libcuda.so.1, /dev/dri/renderD128, /opt/venv/bin/python, C:\\Python312\\python.exe",
    "onnxruntime 1.7.0 and onnxruntime-gpu 1.7.0 are in one environment",
    "GPU-5b4e6d3a-aaaa-bbbb-cccc-0123456789ab",
)


def secret(shape: str, seed: int) -> str:
    chance = random.Random(f"{shape}{seed}")
    return "".join(chance.choice(ALPHABET) if letter == "#" else letter for letter in shape)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_of_a_known_form_is_removed_wherever_it_stands(shape: str, place: str) -> None:
    for seed in range(20):
        key = secret(shape, seed)
        told = Redactor().text(place.format(key))
        assert key not in told and key[-12:] not in told, told


@pytest.mark.parametrize("place", PLACES[1:])
def test_what_stands_where_a_secret_belongs_is_removed_whatever_it_looks_like(place: str) -> None:
    for seed in range(50):
        key = secret("#" * random.Random(seed).randint(6, 40), seed)
        assert key not in Redactor().text(place.format(key))


def test_a_known_secret_is_removed_everywhere_even_inside_words() -> None:
    told = redactor({"MY_SERVICE_PASSWORD": "hunter2"}, ["tr0ub4dor"]).text("xhunter2y and 'tr0ub4dor' and ptr0ub4dorp")
    assert "hunter2" not in told and "tr0ub4dor" not in told


def test_a_file_that_a_variable_names_is_no_secret() -> None:
    assert redactor({"HF_TOKEN_PATH": "/etc/token"}).text("reads /etc/token") == "reads /etc/token"


def test_a_private_key_is_removed_whole_and_also_when_it_is_cut_off() -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
    assert Redactor().text(f"a {key} z") == "a <secret> z"
    assert Redactor().text(f"a {key[:50]}") == "a <secret>"


@pytest.mark.parametrize("text", PLAIN)
def test_what_names_nobody_stays_as_it_is(text: str) -> None:
    someone = Redactor(["/home/ada", "C:\\Users\\ada"], ["ada"], ["lovelace-pc"])
    assert someone.text(text) == text


NAMES = ("ada", "j.doe", "Zoë", "user123", "max_m", "Ada Lovelace", "李雷", "o'neil", "x1")


@pytest.mark.parametrize("name", NAMES)
def test_home_and_user_are_removed_in_every_form(name: str) -> None:
    homes = (f"/home/{name}", f"C:\\Users\\{name}", f"/Users/{name}", f"/srv/homes/{name}")
    for home in homes:
        slash = "\\" if "\\" in home else "/"
        inside = f"{home}{slash}envs{slash}torch"
        forms = [
            inside,
            home,
            inside.replace("\\", "/"),
            json.dumps(inside),
            repr(inside),
            f"'{home}': no",
            f"PATH={inside}:/bin",
        ]
        for form in forms:
            told = redactor({"HOME": home, "USER": name}).text(f"Python at {form} failed")
            assert name not in told and "~" in told, (form, told)


@pytest.mark.parametrize("name", [name for name in NAMES if len(name) > 2])
def test_the_user_is_removed_from_sentences_and_other_paths(name: str) -> None:
    told = redactor({"USER": name}).text(
        f"owned by {name}, in /tmp/pip-{name}/x and /mnt/c/Users/{name}/y, {name}@box.local"
    )
    assert name not in told


def test_homes_of_others_are_removed_as_well() -> None:
    told = Redactor().text(r"/home/grace/x, C:\Users\Grace Hopper\AppData, /mnt/c/Users/grace/y, C:/Users/grace/z")
    assert "grace" not in told.lower() and "hopper" not in told.lower()
    assert "AppData" in told


def test_the_machine_s_name_is_removed_with_and_without_its_domain() -> None:
    told = Redactor(hosts=["lab-7.example.org"]).text("held by process 9 on lab-7.example.org; lab-7 is up")
    assert "lab-7" not in told


def test_a_name_that_is_a_word_of_ours_stays_so_that_the_report_can_be_read() -> None:
    told = redactor({"HOME": "/home/gpu", "USER": "gpu"}).text("the gpu of /home/gpu/x")
    assert told == "the gpu of ~/x"


def test_keys_of_data_are_fields_and_stay() -> None:
    someone = Redactor(users=["max"])
    assert someone.data({"max_abs_error": 0.1, "by": ["max", ("max",)], "n": None}) == {
        "max_abs_error": 0.1,
        "by": ["<user>", ["<user>"]],
        "n": None,
    }
