"""The image and its compose file: linted, and built and run as written, without a container engine."""

import importlib
import json
import re
import shutil
import string
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from app.config import Settings
from tests.support.container_images import Container, Image, Workshop, build, build_context, read_dockerfile, why_not

jsonschema: Any = importlib.import_module("jsonschema")
yaml: Any = importlib.import_module("yaml")

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"
HANG = 120
COMPOSE_SCHEMA = "dclint@3.1.0"
"""A linter on npm that carries the schema of the Compose Specification."""

Start = Callable[..., Container]


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return read


def environment_of(service: str, **given: str) -> dict[str, str]:
    """The variables of a service, with what an operator gave."""
    said: dict[str, str] = compose()["services"][service]["environment"]
    return {
        name: re.sub(r"\$\{(\w+):-(.*)\}", lambda found: given.get(found[1]) or found[2], value)
        for name, value in said.items()
    }


def hadolint(*options: str) -> list[dict[str, Any]]:
    """What the linter finds."""
    beside = Path(sys.executable).with_name("hadolint")
    command = [str(beside) if beside.exists() else "hadolint", "--no-fail", "--format", "json", *options]
    answer = subprocess.run([*command, str(DOCKERFILE)], capture_output=True, text=True, timeout=HANG, check=True)
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_the_linter_finds_nothing_that_is_not_ignored_for_a_reason() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    pragmas = [number for number, line in enumerate(lines) if line.startswith("# hadolint ignore=")]
    ignored = {code for number in pragmas for code in lines[number].partition("=")[2].split(",")}

    assert hadolint() == []
    assert {found["code"] for found in hadolint("--disable-ignore-pragma")} == ignored
    assert all(re.match(r"# \w", lines[number - 1]) for number in pragmas)


def test_every_base_is_a_slim_image_with_a_version() -> None:
    stages = read_dockerfile(DOCKERFILE)
    named = {stage.name for stage in stages}

    assert [stage.base for stage in stages if stage.base not in named] == ["python:3.11-slim-bookworm"]


def test_the_final_stage_installs_programs_but_no_build_tools_and_copies_the_environment_only() -> None:
    final = read_dockerfile(DOCKERFILE)[-1]

    assert {"bubblewrap", "ca-certificates", "git", "ripgrep", "tini"} == set(final.packages())
    assert final.all("COPY") == ["--from=build /opt/toolcrib /opt/toolcrib"]
    assert not [run for run in final.all("RUN") if "pip" in run]


def test_a_change_of_the_code_does_not_install_the_dependencies_again() -> None:
    [_, build_stage, _] = read_dockerfile(DOCKERFILE)
    names = [f"{step.name} {step.rest}" for step in build_stage.instructions]
    installs = next(number for number, step in enumerate(names) if "--require-hashes" in step)

    assert [step for step in names[:installs] if step.startswith("COPY")] == ["COPY requirements-image.lock ./"]


def test_the_build_sees_nothing_but_what_it_needs(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    needed = ["LICENSE", "README.md", "app/api/calls.py", "app/cli/main.py", "migrations/env.py"]
    needed += ["migrations/versions/0001_first.py", "pyproject.toml", "requirements-image.lock"]
    unwanted = [
        ".git/config",
        ".venv/bin/python",
        ".toolcrib/admin.key",
        "tests/support/toy_tools.py",
        "bench/run.py",
        ".env",
    ]
    unwanted += ["app/__pycache__/cli.pyc", "app/cli.pyc", "requirements-test.lock", "toolcrib.toml", "dist/app/x"]
    for name in needed + unwanted:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert [str(name) for name in build_context(tmp_path)] == needed


def test_the_context_of_this_checkout_is_the_package_and_its_description() -> None:
    top = {name.parts[0] for name in build_context(ROOT)}

    assert top == {"LICENSE", "README.md", "app", "migrations", "pyproject.toml", "requirements-image.lock"}


def test_compose_keeps_the_service_on_loopback_and_without_rights() -> None:
    service = compose()["services"]["toolcrib"]

    assert service["ports"] == ["127.0.0.1:8700:8700"]
    assert service["volumes"] == ["data:/data"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert service["pids_limit"] > 0
    assert service["mem_limit"].endswith("g")
    assert service["restart"] == "unless-stopped"
    assert {"interval", "timeout", "retries", "start_period"} == set(service["healthcheck"])
    assert not {"privileged", "network_mode", "pid", "cap_add"} & set(service)


def test_compose_gives_the_service_time_to_end_in_order() -> None:
    period = compose()["services"]["toolcrib"]["stop_grace_period"]

    assert float(period.removesuffix("s")) > Settings().grace + 5


def test_the_settings_of_compose_are_settings_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of("toolcrib").items():
        monkeypatch.setenv(name, value)

    settings = Settings()

    assert settings.allowed_hosts == ["toolcrib"]
    assert not settings.api_key  # one is made


def test_the_gateway_is_an_example_that_must_be_asked_for() -> None:
    services = compose()["services"]
    gateway = services["gateway"]

    assert [name for name, service in services.items() if "profiles" not in service] == ["toolcrib"]
    assert re.fullmatch(r"[a-z/_-]+:v\d+\.\d+\.\d+", gateway["image"])
    assert gateway["ports"] == ["127.0.0.1:4000:4000"]
    assert gateway["depends_on"] == {"toolcrib": {"condition": "service_healthy"}}
    assert (gateway["cap_drop"], gateway["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert {"pids_limit", "mem_limit"} <= set(gateway)


def test_the_gateway_knows_the_service_by_a_name_that_is_allowed_and_gets_every_key_it_reads() -> None:
    text = (ROOT / "deploy/litellm.yaml").read_text()
    server = yaml.safe_load(text)["mcp_servers"]["toolcrib"]
    hosts = json.loads(environment_of("toolcrib")["TOOLCRIB_ALLOWED_HOSTS"])

    assert server["url"] in [f"http://{host}:8700/mcp" for host in hosts if host in compose()["services"]]
    assert (server["transport"], server["auth_type"]) == ("http", "bearer_token")
    assert server["auth_value"] == "os.environ/TOOLCRIB_GATEWAY_KEY"
    assert set(re.findall(r"os\.environ/(\w+)", text)) == set(environment_of("gateway"))


def test_every_variable_of_compose_is_in_the_example() -> None:
    named = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))

    assert named
    assert named <= set(re.findall(r"^# (\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def test_the_compose_client_takes_the_file() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker here")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=HANG, check=False).returncode:
        pytest.skip("docker has no compose here")
    command = ["docker", "compose", "--profile", "gateway", "config", "--format", "json"]

    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)

    assert answer.returncode == 0, answer.stderr
    assert set(json.loads(answer.stdout)["services"]) == {"toolcrib", "gateway"}


@pytest.mark.faults
def test_compose_follows_the_specification(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm here to fetch the schema of the Compose Specification with")
    command = ["npm", "pack", "--silent", COMPOSE_SCHEMA]
    fetched = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False)
    if fetched.returncode:
        pytest.skip(f"npm could not fetch {COMPOSE_SCHEMA}: {fetched.stderr[-300:]}")
    [packed] = tmp_path.glob("*.tgz")
    with tarfile.open(packed) as archive:
        file = archive.extractfile("package/schemas/compose.schema.json")
        assert file is not None
        check = jsonschema.Draft7Validator(json.load(file))
    broken = compose()
    broken["services"]["toolcrib"]["read_onyl"] = True

    assert [error.message for error in check.iter_errors(compose())] == []
    assert [error.message for error in check.iter_errors(broken)] != []


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if reason := why_not(tmp_path_factory.mktemp("probe")):
        pytest.skip(reason)
    workshop = Workshop(tmp_path_factory.mktemp("workshop"))
    try:
        yield build(DOCKERFILE, ROOT, workshop)
    finally:
        workshop.close()


@pytest.fixture
def start(image: Image, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts containers on one new volume, and sees to it that none is left."""
    started = list[Container]()
    volume = image.new_volume(re.sub(r"\W", "-", request.node.name))
    [mount] = compose()["services"]["toolcrib"]["tmpfs"]

    def start(*command: str, **env: str) -> Container:
        started.append(Container(image, volume, mount.partition(":")[2], environment_of("toolcrib") | env, *command))
        return started[-1]

    yield start
    for one in started:
        one.close()


def ready(container: Container) -> Container:
    line = next(container.lines(), "")
    if "is ready at" not in line:
        raise RuntimeError(f"it did not start: {line}{container.wait()}")
    return container


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_the_image_holds_what_the_service_needs_and_nothing_of_its_build(image: Image) -> None:
    [site] = (image.seen / "opt/toolcrib/lib").glob("python3.*/site-packages")
    found = {dist.name.lower().replace("_", "-"): dist for dist in distributions(path=[str(site)])}

    assert set(found) == needed_by("toolcrib", found, "node", "python")
    assert not (image.seen / "opt/toolcrib/bin/pip").exists()
    assert not list((image.seen / "var/lib/apt/lists").iterdir())
    assert not (image.seen / "src").exists()
    assert (image.entrypoint, image.command) == (["tini", "--", "toolcrib"], ["serve"])
    assert (image.env["TOOLCRIB_HOST"], image.env["TOOLCRIB_DATA_DIR"]) == ("0.0.0.0", "/data")
    assert (image.volume, image.port, image.stop_signal) == ("/data", Settings().port, "SIGTERM")
    assert set(image.labels) == {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses")}


def needed_by(root: str, found: dict[str, Distribution], *extras: str) -> set[str]:
    """A package with some of its extras, and all it asks for."""
    seen, todo = set[tuple[str, str]](), [(root, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in found[name].requires or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                todo += [(wanted.name.lower().replace("_", "-"), each) for each in ("", *wanted.extras)]
    return {name for name, _ in seen}


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_a_container_serves_as_its_own_user_from_a_new_volume_and_ends_in_order(image: Image, start: Start) -> None:
    container = ready(start())

    called = container.run("toolcrib", "call", "read_file", '{"file_path": "hello.txt"}')
    processes = container.run("sh", "-c", "cat /proc/1/comm; id -u; id -g; stat -c '%a %u %g' /data /data/admin.key")
    written = container.run("sh", "-c", "touch /tmp/x && ! touch /etc/toolcrib/x /opt/toolcrib/x /usr/x")
    healthy = container.run(*image.health)
    code, said = container.stop(image.stop_signal)

    assert (called.returncode, called.stderr) == (0, "")
    assert "Hello from your Toolcrib workspace." in called.stdout
    assert processes.stdout.split("\n")[:-1] == ["tini", "10001", "10001", "700 10001 10001", "600 10001 10001"]
    assert written.returncode == 0
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert code == 0, said
    assert "Traceback" not in said


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_a_container_has_walls_and_interpreters_behind_them(image: Image, start: Start) -> None:
    container = ready(start())

    command = container.run(
        "toolcrib", "call", "shell_command", '{"command": "id -u; touch here; ls; cat /data/admin.key"}'
    )
    javascript = container.run("toolcrib", "call", "js_repl", "--input", "6 * 7")
    python = container.run("toolcrib", "call", "python", '{"code": "get_ipython().__class__.__name__"}')
    container.stop(image.stop_signal)

    assert command.stdout.count("\n10001\nhello.txt\nhere\n") == 1, command.stdout + command.stderr
    assert "admin.key: " in command.stdout  # only why it cannot be read
    assert (javascript.returncode, javascript.stdout) == (0, "42\n"), javascript.stderr
    assert "InteractiveShell" in python.stdout, python.stdout + python.stderr


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_the_health_check_follows_the_port_and_fails_when_nobody_serves(image: Image, start: Start) -> None:
    elsewhere = ready(start(TOOLCRIB_PORT="8765", http_proxy="http://127.0.0.1:9"))
    by_variable = elsewhere.run(*image.health)
    elsewhere.stop("SIGKILL")  # what it wrote down stays behind
    after_a_crash, said = start(*image.health).wait()
    again = ready(start(*image.entrypoint, "serve", "--port", "8766"))
    by_flag = again.run(*image.health)
    again.stop(image.stop_signal)
    after_the_end, _ = start(*image.health).wait()

    assert (by_variable.returncode, by_flag.returncode) == (0, 0), by_variable.stderr + by_flag.stderr
    assert after_a_crash == 1
    assert "Connection refused" in said
    assert after_the_end == 1


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_the_gateway_gets_in_by_the_services_name_and_with_the_key_of_the_operator(start: Start) -> None:
    container = ready(start(TOOLCRIB_API_KEY="tk_of_the_operator"))
    ask = string.Template(
        "import http.client; web = http.client.HTTPConnection('127.0.0.1', 8700, timeout=60); "
        "web.request('GET', '/v1/tools', headers={'Host': '$host', 'Authorization': 'Bearer $key'}); "
        "print(web.getresponse().status)"
    )

    answers = [
        container.run("python", "-c", ask.substitute(host=host, key=key)).stdout.strip()
        for host, key in [
            ("toolcrib:8700", "tk_of_the_operator"),
            ("toolcrib:8700", "tk_of_nobody"),
            ("elsewhere:8700", "tk_of_the_operator"),
        ]
    ]

    assert answers == ["200", "401", "403"]


@pytest.mark.faults
@pytest.mark.xdist_group("image")
@pytest.mark.timeout(900)
def test_the_programs_that_tools_use_are_there(start: Start) -> None:
    container = ready(start())

    for program in ("rg", "node", "git", "bwrap", "tini"):
        answer = container.run(program, "--version")
        assert (answer.returncode, bool(answer.stdout)) == (0, True), program
