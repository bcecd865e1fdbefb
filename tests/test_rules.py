"""The house rules that a machine can check: direction of imports, sizes, public names, paths, the equation index."""

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import longlag as ll

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "longlag"
MODULES = sorted(PACKAGE.rglob("*.py"))

# room -> rooms it may import from; the chain of the design, and its two branches
CHAIN = ("tasks", "cells", "engines", "layers", "learn", "lab", "report", "cli")
LEFT: dict[str, set[str]] = {room: set(CHAIN[:k]) for k, room in enumerate(CHAIN)}
LEFT["structured"] = LEFT["learn"] - {"learn"}
LEFT["tagger"] = LEFT["lab"] | {"structured"}
LEFT["flow"] = LEFT["lab"]
LEFT["estimators"] = LEFT["lab"]
LEFT["play"] = {"cells"}  # serves the playground's page, and the code of cells typed there
LEFT["rl"] = LEFT["learn"] - {"learn"}  # policies made of layers
LEFT["export"] = LEFT["lab"] | {"structured"}  # exports layers, learners that learn on, and the decoding of a CRF
LEFT["cli"] |= {
    "structured",
    "tagger",
    "flow",
    "export",
    "play",
    "",
}  # "": the package itself, which comes before the commands
EVERYWHERE = {"files", "results", "style"}  # modules of the package itself: any room may use them


def name_of(module):
    """longlag.cells.elman for src/longlag/cells/elman.py; a package is named by its folder."""
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module):
    """Names of all that a module of ours imports from ours, wherever the import is."""
    package = name_of(module) if module.name == "__init__.py" else name_of(module).rpartition(".")[0]
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def misdirected(module, found):
    """Those of ``found`` that the module must not import."""
    own = name_of(module).split(".")[1]
    for name in found:
        if name.split(".")[0] == "longlag":
            room = (name.split(".") + [""])[1]
            if room not in {own, *EVERYWHERE, *LEFT.get(own, set())} and not re.fullmatch(r"__\w+__", room):
                yield name


@pytest.mark.parametrize("module", [m for m in MODULES if m.parent != PACKAGE], ids=name_of)
def test_imports_come_from_the_left(module):
    assert name_of(module).split(".")[1] in LEFT, "a room that the design does not know"
    assert list(misdirected(module, imports(module))) == []


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_what_every_room_may_import_imports_no_room(name):
    found = [found.split(".")[1] for found in imports(PACKAGE / f"{name}.py") if found.startswith("longlag.")]
    assert set(found) <= EVERYWHERE - {name}


def test_the_direction_rule_sees_a_wrong_import():
    module = PACKAGE / "cells" / "elman.py"
    wrong = ["longlag.layers.Elman", "longlag.cli", "longlag", "longlag.LSTM"]
    fine = ["longlag.files.replace", "longlag.cells.tanh", "longlag.tasks.Copy", "longlag.__version__", "torch.nn"]
    assert list(misdirected(module, [*wrong, *fine])) == wrong


def private(module, found):
    """Those of ``found`` that reach into a private module or name of another room."""
    own = name_of(module).split(".")[1]
    for name in found:
        package, room, *path = [*name.split("."), ""]
        if package == "longlag" and room != own and any(re.match(r"_(?!_)", part) for part in path):
            yield name


@pytest.mark.parametrize("module", [m for m in MODULES if m.parent != PACKAGE], ids=name_of)
def test_rooms_import_public_names_of_other_rooms_only(module):
    assert list(private(module, imports(module))) == []


def test_the_privacy_rule_sees_a_private_import():
    module = PACKAGE / "learn" / "rtrl.py"
    wrong = ["longlag.layers._stack.Stack", "longlag.cells._language", "longlag.engines._choose.choose"]
    fine = ["longlag.learn._dense.Dense", "longlag.layers.Layer", "longlag.layers.units.NotLocal", "torch._C"]
    assert list(private(module, [*wrong, *fine])) == wrong


LAYER_CLASSES = (
    r"Layer|StepLayer|Recurrent|Elman|LSTM|GRU|LSTM97|Leaky|LocalFeedback|LocalFeedbackNetwork|Jordan|Skip|EchoState"
)


def test_rooms_ask_layers_and_not_their_classes():
    """A new layer must not need an isinstance test anywhere: strategies are chosen by what a layer declares."""
    test = re.compile(rf"isinstance\([^)]*(?<!nn\.)\b(?:{LAYER_CLASSES})\b")
    rooms = [m for m in MODULES if "layers" not in m.relative_to(PACKAGE).parts]
    found = [f"{name_of(m)}: {hit}" for m in rooms for hit in test.findall(m.read_text(encoding="utf-8"))]
    assert len(found) <= 3, found


def limit(module):
    """Lines a module may have; a kernel file holds a whole algorithm."""
    if module.name == "__init__.py":
        return 60
    room = name_of(module).split(".")[1]
    if room == "cells" and not module.name.startswith("_"):
        return 60
    is_kernel = {"cpu", "gpu"} & set(module.parts) or module.stem.endswith(("_cpu", "_gpu"))
    return 500 if is_kernel else 300


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_modules_are_small(module):
    lines = len(module.read_text(encoding="utf-8").splitlines())
    assert lines <= limit(module), f"{lines} lines, {limit(module)} allowed"


# ------------------------------------------------------------------------------------------------ public names


def public(thing):
    return {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}


def own_members(module):
    """The classes, functions and cells of a public module that are ours."""
    for name, value in public(module).items():
        if getattr(value, "__module__", "").startswith("longlag") and callable(value):
            yield name, value


NAMES = public(ll)
WRITTEN = {name: value for name, value in NAMES.items() if not isinstance(value, ModuleType)}


def test_there_are_few_public_names():
    assert 10 < len(NAMES) < 60


@pytest.mark.parametrize("name", WRITTEN)
def test_a_public_name_is_documented_with_an_example(name):
    thing = WRITTEN[name]
    doc = inspect.getdoc(thing)
    assert doc
    assert ">>>" in doc
    if inspect.isclass(thing):
        ours = {key for kind in thing.__mro__ if kind.__module__.startswith("longlag") for key in vars(kind)}
        methods = {key: value for key, value in public(thing).items() if key in ours and inspect.isfunction(value)}
        assert [key for key, method in methods.items() if not inspect.getdoc(method)] == []


def test_public_modules_are_documented():
    for name, module in NAMES.items():
        if isinstance(module, ModuleType) and module.__name__.startswith("longlag."):
            assert module.__doc__, name
            undocumented = [member for member, value in own_members(module) if not inspect.getdoc(value)]
            assert undocumented == [], name


# ------------------------------------------------------------------------------------------------ the repository


def files():
    """Tracked files and those about to be; without git, all that are not hidden or built."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if (ROOT / ".git").exists():
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    built = {"build", "dist", "__pycache__", "runs"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not any(q[0] == "." or q in built for q in p.parts)]


def test_no_machine_paths_and_no_package_hosts():
    folders = "work|tmp|home|root|Users|mnt|opt"
    path = re.compile(rf"(?<![\w./*)-])/(?:{folders})/[\w.]")
    host = re.compile(r"pypi\.(?:org|python)|pythonhosted\.org|download\.pytorch|conda\.(?:io|anaconda)")
    assert path.search("see '/" + "tmp/x'")
    assert not path.search("https://example.com/work/x and src/home/y")
    found = []
    for file in files():
        if file.suffix in (".png", ".xz", ".npz", ".safetensors") or file == Path(__file__):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if path.search(line) or host.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_importing_is_cheap():
    heavy = ("sympy", "numba", "matplotlib", "jinja2", "typer", "rich", "joblib", "scipy", "pandas")
    code = f"import sys, longlag; print([m for m in {heavy} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert 0 < len(lines) < 120


def test_there_is_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version", "readme", "urls"]
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/longlag/__init__.py"
    assigned = [m for m in MODULES if re.search(r"^__version__\s*=", m.read_text(encoding="utf-8"), re.MULTILINE)]
    assert assigned == [PACKAGE / "__init__.py"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", ll.__version__)


@pytest.fixture
def links(monkeypatch):
    """tools/links.py, which only the build imports; hatchling is not installed here."""
    name = "hatchling.metadata.plugin.interface"
    for end in [*re.finditer(r"\.", name), None]:
        monkeypatch.setitem(sys.modules, name[: end.start() if end else None], ModuleType("hatchling"))
    monkeypatch.setattr(sys.modules[name], "MetadataHookInterface", object, raising=False)
    spec = importlib.util.spec_from_file_location("links", ROOT / "tools" / "links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_package_are_urls(links):
    """In the metadata and in the README that a package index shows; every file linked exists."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    address = links.address({"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "us/longlag"})
    assert address == "https://example.org/us/longlag"
    found = links.fields(text, address)
    targets = [*found["urls"].values(), *re.findall(r"\]\(([^)\s]+)\)", found["readme"]["text"])]
    assert len(targets) > 20
    assert [target for target in targets if not urlsplit(target).hostname] == []
    assert f"{address}/raw/HEAD/docs/img/targets.png" in targets
    files = [match[1] for target in targets if (match := re.search(r"/(?:raw|blob|tree)/HEAD/(.+)", target))]
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_a_build_without_an_address_invents_none(links):
    assert links.address({}) is None
    found = links.fields("[a page](docs/page.md)", None)
    assert (found["readme"]["text"], found["urls"]) == ("[a page](docs/page.md)", {})


# ------------------------------------------------------------------------------------------------ equation index

SYSTEMS = {
    *("LF-92", "LF-92-ML", "RNN-97", "LSTM-97", "ELMAN", "JORDAN", "PAT-I", "PAT-II", "PAT-III", "PAT-IV", "TF-MIX"),
    *("CLIP", "LSTM-FG", "LEAKY", "SKIP", "ESN", "LN-RNN", "MLP-BP", "BI", "CRF", "BILSTM-CRF", "SEQ2SEQ", "ATT"),
    *("E1", "E2a", "E2b", "E2c", "E3a", "E3b", "E3c", "E4", "E5", "E6a", "E6b"),
}
NUMBER_OF_ERRATA = {"000": 10, "001": 38, "002": 9, "003": 5, "004": 12}
INDEX = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")


def tool():
    spec = importlib.util.spec_from_file_location("equations", ROOT / "tools" / "equations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions_in(file):
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_the_index_and_the_tags_in_the_sources_agree():
    equations = tool()
    assert list(equations.problems(INDEX, equations.sources())) == []
    assert {row.tag.split()[0] for row in equations.rows(INDEX)} >= SYSTEMS
    assert not re.search(r"#L\d+", INDEX), "the index goes by tag, not by line number"


def index_of(*rows):
    return "\n".join(f"| `[{tag}]` | y = x | [a.py](../{path}) | `a/test_b.py::test_c` |" for tag, path in rows)


@pytest.mark.parametrize(
    ("index", "source", "problem"),
    [
        (index_of(("AB 1", "src/a.py")), "y = x  # [AB 1]", None),
        (index_of(("AB 1", "src/a.py")), 'def f():\n    """y = x [AB]"""\n    return x  # [AB 1]', None),
        (index_of(("AB 1", "src/a.py")), '"""[AB 1]"""\ny = x', "[AB 1] is in no comment of src/a.py"),
        (index_of(("AB 1", "src/a.py")), 'y = "[AB 1]"  # [AB 1 b]', "[AB 1] is in no comment of src/a.py"),
        (index_of(("AB 1", "src/old.py")), "y = x  # [AB 1]", "src/old.py, which does not exist (it is in src/a.py)"),
        (index_of(("AB 1", "src/a.py")), "y = x  # [AB 1] [AB 2]", "src/a.py:1: [AB 2] has no row"),
        (index_of(("AB 1", "src/a.py")), "y = x  # [AB 1]\nz = x  # [AB]", "src/a.py:2: [AB] has no row"),
        (index_of(("AB 1", "src/a.py")), 'y = x  # [AB 1]\n"""\n[E2a]"""', "src/a.py:3: [E2a] has no row"),
        (index_of(("AB 1", "src/a.py"), ("AB 1", "src/a.py")), "y  # [AB 1]", "more than one row"),
    ],
)
def test_the_index_check_sees_what_is_wrong(index, source, problem):
    found = list(tool().problems(index, {"src/a.py": source}))
    assert found == [] if problem is None else any(problem in text for text in found), found


def test_a_malformed_row_is_refused():
    with pytest.raises(ValueError, match=r"not \| `\[tag\]`"):
        tool().rows("| `[AB 1]` | y = x | [a.py:3](../src/a.py#L3) | `a/test_b.py::test_c` |")


def test_the_index_tool_finds_the_line_of_a_tag(capsys):
    equations = tool()
    assert equations.main(["ELMAN", "1"]) == 0
    file, line = capsys.readouterr().out.splitlines()[0].rsplit(":", 1)
    assert "# [ELMAN 1]" in (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert equations.main(["NO-SUCH 1"]) == 1
    assert capsys.readouterr().out == "no line is tagged [NO-SUCH 1]\n"


def test_the_index_names_tests_that_exist():
    for file, name in set(re.findall(r"`([\w/]+\.py)::(\w+)`", INDEX)):
        assert name in functions_in(file), f"{file}::{name}"


def test_every_erratum_is_listed():
    rows = dict(re.findall(r"^\| (00\d-\d+) \|(.*)$", INDEX, re.MULTILINE))
    assert list(rows) == [f"{seed}-{k}" for seed, n in NUMBER_OF_ERRATA.items() for k in range(1, n + 1)]
    for file in sorted((ROOT / "tests" / "errata").glob("test_*.py")):
        for name in functions_in(f"errata/{file.name}"):
            if number := re.match(r"test_(\d{3})_(\d+)_", name):
                assert f"::{name}`" in rows["-".join(number.groups())], name
    for number, row in rows.items():
        assert row.endswith("` |") or row.endswith("| wording |"), number
