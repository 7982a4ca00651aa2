"""What is shipped is what is declared: light imports, kernels in their files, and a wheel that works elsewhere."""

from __future__ import annotations

import ast
import configparser
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("semu", "semu_models")
HEAVY = ("matplotlib", "networkx", "numba", "ortools", "pandas", "scipy", "torch")


def run_python(code: str, *, cwd: Path = ROOT, path: Path = ROOT) -> str:
    """Standard output of a fresh interpreter that finds semu in ``path`` and turns warnings into errors."""
    prelude = f"import sys; sys.path.insert(0, {str(path)!r})\n"
    command = [sys.executable, "-W", "error", "-c", prelude + code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def source_files() -> list[Path]:
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(file: Path) -> set[str]:
    """Dotted names that a file imports anywhere in it; ``from a import b`` gives both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def is_kernel_module(name: str) -> bool:
    return "kernels" in name.split(".")[-2:]


@pytest.mark.extras
@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    loaded = json.loads(run_python(f"import json, {package}; print(json.dumps(sorted(sys.modules)))"))
    assert package in loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.extras
def test_every_module_imports_alone_and_only_kernels_load_numba() -> None:
    """One interpreter imports the modules in turn and notes which heavy package came in with which module.

    scipy is made impossible to import, as numba would load it wherever it is installed.
    """
    names = [module_name(file) for file in source_files() if file.stem != "__main__"]
    names = [name for name in names if not name.startswith("semu.executor.")]  # these may need the executor extra
    code = (
        "import importlib, json\n"
        "sys.modules['scipy'] = None\n"
        "came = {}\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        f"    for heavy in {HEAVY!r}:\n"
        "        if sys.modules.get(heavy): came.setdefault(heavy, name)\n"
        "print(json.dumps(came))"
    )
    came = json.loads(run_python(code))
    assert set(came) <= {"numba"}, f"heavy package: first module that loads it: {came}"


NAMES = """
    Assigner Assignment Checkpoint Cluster ConfigError DType Estimate ExecutionPlan Graph GraphError GraphTimeline
    GridResult Input InputSpec IterationTimeline JobCheckpoint Level MemoryCurve ModalityModule ModalityRole Model
    ModuleParallel OpKind Overlap Parallel Phase PipelineLayout Planner Port Precision Provenance Recompute
    Replication Report ResultCache Role Schedule ScheduleError SearchReport SemuError ShapeSweep Simulation Span
    StagePlan Training TrainingJob __version__ assign assignment_study baselines compare_schedules compile_plan
    context engine errors evaluate explore_schedules goodput graph grid hardware include nn parallel
    pipeline_templates prepare run schedule search simulate simulate_pipelines sweep trace what_if workload
    workload_study
""".split()  # noqa: SIM905
"""What users may import from semu: a name may be added, none may go."""


def test_every_name_of_semu_resolves_to_the_object_of_its_own_module() -> None:
    declared = {}
    for node in ast.parse((ROOT / "semu/__init__.pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            declared |= {alias.name: node.module for alias in node.names}
    code = (
        "import importlib, json, semu\n"
        f"missing = [name for name in {NAMES!r} if not hasattr(semu, name)]\n"
        f"other = [name for name, home in {declared!r}.items()\n"
        "         if getattr(semu, name) is not getattr(importlib.import_module(home), name)]\n"
        "print(json.dumps([missing, other]))"
    )
    assert json.loads(run_python(code)) == [[], []]
    assert declared.keys() >= set(NAMES) - {"__version__"}


def test_dir_shows_what_a_star_imports() -> None:
    """The names of daily use: about 25, all of them declared; the others are shown by their own modules."""
    code = "import json, semu\nshown = dir(semu)\nfrom semu import *\nprint(json.dumps([shown, semu.__all__, dir()]))"
    shown, declared, imported = json.loads(run_python(code))
    assert shown == sorted(set(declared))
    assert set(shown) <= set(imported)
    assert 20 <= len(shown) <= 32
    assert set(shown) <= set(NAMES)


def test_a_name_that_semu_does_not_have_is_an_attribute_error() -> None:
    code = "import semu\ntry:\n    semu.Clusters\nexcept AttributeError as error:\n    print(error)"
    assert run_python(code).strip() == "module 'semu' has no attribute 'Clusters'"


UNASKED = """
    semu.baselines semu.cli semu.executor semu.exports semu.fitting semu.plan semu.present.page semu.present.pictures
    semu.resilience semu.schedule.compare semu.schedule.exploration semu.schedule.generators.zb_v
    semu.schedule.rules.program semu.searcher semu.validation semu_models.generation semu_models.hf.load
    semu_models.listing semu_models.multimodal semu_models.text.bert semu_models.text.gemma semu_models.vision
    matplotlib networkx ortools pandas torch
""".split()  # noqa: SIM905
"""What a simulation of a language model has nothing to do with."""


def test_a_simulation_imports_only_what_it_needs() -> None:
    code = "import json, sys, semu\nsemu.simulate('lm-7b')\nprint(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run_python(code))
    assert [name for name in UNASKED if any(f"{one}.".startswith(f"{name}.") for one in loaded)] == []
    assert sum(name.partition(".")[0] in PACKAGES for name in loaded) < 420


def test_numba_is_used_only_in_kernel_files() -> None:
    users = [module_name(file) for file in source_files() if "numba" in imported_names(file)]
    assert [name for name in users if not is_kernel_module(name)] == ["semu.dispatchers"]


def committed_files() -> list[Path]:
    """Files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [file for name in done.stdout.split("\0") if name and (file := ROOT / name).is_file()]


def test_no_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    # Put together here, so that this file passes too.
    forbidden = [
        "pypi" + ".org",
        "files.python" + "hosted",
        "/wo" + "rk/",
        "/ro" + "ot/",
        "/opt/" + "wheels",
        "/tmp/" + "w/",
    ]
    found = []
    for file in committed_files():
        text = file.read_bytes().decode("utf-8", errors="ignore")
        found += [(str(file.relative_to(ROOT)), word) for word in forbidden if word in text]
    assert found == []


def test_no_file_tells_to_install_semu_from_an_index() -> None:
    """There it is not published: a checkout or a wheel is what one installs."""
    wrong = re.compile(r"pip install (?:-U |--upgrade )?[\"']?se" + r"mu(?:\[|\b)")
    assert [
        str(file.relative_to(ROOT))
        for file in committed_files()
        if wrong.search(file.read_bytes().decode("utf-8", "ignore"))
    ] == []


def test_every_constraint_is_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    names = [line.split("==")[0] for line in lines]
    assert all(line.count("==") == 1 for line in lines)
    assert len(names) == len(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    assert {need.split(">=")[0].lower() for need in wanted} <= set(names)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    shipped = {
        file
        for package in PACKAGES
        for pattern in ("*.py", "*.pyi", "*.toml", "*.json", "*.js", "*.css", "*.LICENSE", "py.typed")
        for file in (ROOT / package).rglob(pattern)
    }
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == {file.relative_to(ROOT).as_posix() for file in shipped}
    assert {"semu/py.typed", "semu_models/py.typed"} <= inside
    assert any(name.startswith("semu/hardware/profiles/") and name.endswith(".toml") for name in inside)


@pytest.mark.slow
def test_wheel_metadata(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(texts["METADATA"])
    assert (metadata["Name"], metadata["Version"]) == (project["name"], project["version"])
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Apache License" in texts["LICENSE"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    always = {need.split(">=")[0] for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need}
    assert always == {"numpy", "networkx", "numba", "ortools", "matplotlib", "scipy", "shtab", "pyyaml"}
    scripts = configparser.ConfigParser()
    scripts.read_string(texts["entry_points.txt"])
    assert dict(scripts["console_scripts"]) == {"semu": "semu.__main__:run"}


@pytest.mark.slow
def test_wheel_works_away_from_the_repository(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import semu; from semu.cli import main; print(semu.__file__); main(['list', 'devices'])\n"
    code += "main(['validate']); sys.exit(main(['simulate', 'lm-7b']))"
    where, *printed = run_python(code, cwd=tmp_path, path=site).splitlines()
    assert Path(where).is_relative_to(site)
    assert any("h800" in line for line in printed) and any(line.startswith("iteration ") for line in printed)
    assert any(line.startswith("all ") for line in printed)  # of the runs that ship
