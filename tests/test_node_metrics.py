"""What a node says of itself over HTTP: it adds up, and the dashboard asks for what there is."""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import kvarter.node
from kvarter.cli.main import app
from kvarter.errors import ConfigError
from kvarter.node.http import MetricsServer, address
from kvarter.node.latency import BUCKETS, Histogram, quantile
from looking_words import BLOCK, NAMESPACE, UNIT, Engine, Served, sequence, until

MIB = 1 << 20
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("metrics")
    served = Served(directory, "--dram", "32MiB", "--disk", f"{directory}/disk:1GiB")
    yield served
    assert served.end() == 0


@pytest.fixture
def engine(node: Served, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = Engine(node.path, request.node.name)
    yield engine
    engine.close()


def page(node: Served, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def samples(node: Served) -> Samples:
    """Values by name without the prefix, and label values in the order of their names."""
    return {
        (
            sample.name.removeprefix("kvarter_node_"),
            tuple(v for _, v in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(page(node, "/metrics")[1])
        for sample in family.samples
    }


def total(said: Samples, name: str, *labels: str) -> float:
    """Over all samples of this name that have these labels."""
    return sum(value for (n, values), value in said.items() if n == name and set(labels) <= set(values))


def test_bytes_of_each_tier_add_up_to_its_capacity(node: Served, engine: Engine) -> None:
    engine.put(sequence(0, 20), range(20))
    said = samples(node)
    for tier in ("dram", "disk"):
        assert total(said, "bytes", tier) == said["capacity_bytes", (tier,)] > 0
    assert said["capacity_bytes", ("dram",)] >= 32 * MIB


def test_every_block_offered_is_stored_refused_or_under_way(node: Served, engine: Engine) -> None:
    seq = sequence(1_000_000, 12)
    assert engine.put(seq, range(8)) == 8
    assert engine.put(seq, range(12)) == 4  # of which 8 are there already
    said = samples(node)
    refused = total(said, "refused_blocks_total", "dram")
    in_flight = said["blocks", ("in_flight", "dram")]
    assert (
        said["offered_blocks_total", ("dram",)]
        == said["stored_blocks_total", ("dram",)] + refused + in_flight
    )
    assert said["refused_blocks_total", ("already_resident", "dram")] >= 8
    dropped = total(said, "dropped_blocks_total", "dram")
    assert said["stored_blocks_total", ("dram",)] == dropped + said["blocks", ("resident", "dram")]


def test_units_asked_for_are_attributed_to_one_tier_each_and_once_for_each_request(
    node: Served, engine: Engine
) -> None:
    seq = sequence(2_000_000, 16)
    engine.put(seq, range(10))
    before = samples(node)

    def since(tier: str) -> float:
        return samples(node)["asked_units_total", (tier,)] - before["asked_units_total", (tier,)]

    for _ in range(2):  # an engine looks again while a request waits
        match = engine.store.match(seq, request="r", have_tokens=3 * UNIT, limit=16 * UNIT)
        assert match.tokens == 10 * UNIT
    until(lambda: since("miss") == 6)
    assert [since(tier) for tier in ("engine", "dram", "disk", "miss")] == [3, 7, 0, 6]
    after = samples(node)
    assert after["match_seconds_count", ()] - before["match_seconds_count", ()] == 2


def test_what_was_asked_for_before_is_under_the_ceiling(node: Served, engine: Engine) -> None:
    before = samples(node)

    def observed(seen: str) -> float:
        name = "observed_units_total"
        return samples(node)[name, (seen,)] - before[name, (seen,)]

    for name in ("first", "again"):
        engine.store.match(sequence(3_000_000, 40), request=name)
    until(lambda: observed("before") + observed("first") == 80)
    assert observed("before") == 40  # nothing was stored: an infinite cache would have had it


def test_calls_and_fetches_are_counted_by_their_time(node: Served, engine: Engine) -> None:
    seq = sequence(4_000_000, 100)
    before = samples(node)
    engine.put(seq, range(100))
    assert engine.get(engine.store.match(seq, limit=100 * UNIT)) == 0
    said = samples(node)
    for verb in ("reserve", "complete", "lease", "release"):
        name = "call_seconds_count", (verb,)
        assert said[name] > before[name]
        assert said["call_seconds_sum", (verb,)] > before["call_seconds_sum", (verb,)]
        assert said["call_seconds_bucket", ("+Inf", verb)] == said[name]
    assert (
        said["load_blocks_total", ("loaded", "dram")] - before["load_blocks_total", ("loaded", "dram")] == 100
    )


def test_a_block_from_disk_is_attributed_to_it_and_its_fetch_is_timed(node: Served, engine: Engine) -> None:
    seq = sequence(5_000_000, 50)
    engine.put(seq, range(50))
    until(lambda: samples(node)["stored_blocks_total", ("disk",)] >= 50)
    chain, start = seq.chain(engine.store.open(NAMESPACE)), 6_000_000
    while engine.store.index.leading(chain, 0, 50) == 50:  # until others have taken its place
        start += 100_000
        engine.put(sequence(start, 100), range(100))
        until(lambda: samples(node)["blocks", ("queued", "disk")] == 0)
    before = samples(node)
    match = engine.store.match(seq, limit=50 * UNIT, request="from disk")
    assert engine.get(match, "from disk") == 0
    until(lambda: samples(node)["asked_units_total", ("disk",)] > before["asked_units_total", ("disk",)])
    said = samples(node)
    assert (
        said["asked_units_total", ("disk",)] - before["asked_units_total", ("disk",)]
        == match.disk_tokens // UNIT
    )
    assert said["fetch_seconds_count", ()] - before["fetch_seconds_count", ()] == 1
    assert said["load_blocks_total", ("loaded", "disk")] > before["load_blocks_total", ("loaded", "disk")]


def test_engines_and_namespaces_have_their_own_series(node: Served, engine: Engine) -> None:
    engine.put(sequence(7_000_000, 5), range(5))
    said = samples(node)
    assert said["engine_processes", (engine.store.name,)] == 1  # scheduler and worker in one
    (space,) = [labels for name, labels in said if name == "namespace_bytes"]
    assert said["namespace_bytes", space] == BLOCK * said["namespace_blocks", space] > 0


def test_names_are_as_prometheus_wants_them(node: Served) -> None:
    for family in text_string_to_metric_families(page(node, "/metrics")[1]):
        assert family.name.startswith("kvarter_node")
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")


def test_the_dashboard_asks_for_every_family_and_for_no_other(node: Served) -> None:
    families = list(text_string_to_metric_families(page(node, "/metrics")[1]))
    there = {sample.name for family in families for sample in family.samples}
    dashboard = json.loads(resources.files(kvarter.node).joinpath("dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"]]
    asked = set(re.findall(r"\bkvarter_\w+", " ".join(expressions)))
    assert asked <= there
    for family in families:
        assert asked & {sample.name for sample in family.samples}, f"no panel shows {family.name}"
    labels = {sample.name: set(sample.labels) | {"le"} for family in families for sample in family.samples}
    for name, said in re.findall(r"\b(kvarter_\w+)\{([^}]*)\}", " ".join(expressions)):
        assert set(re.findall(r"(\w+)=", said)) - {"instance"} <= labels[name]


def test_the_command_prints_the_dashboard() -> None:
    printed = CliRunner().invoke(app, ["dashboard"])
    assert json.loads(printed.stdout)["uid"] == "kvarter-node"


def test_a_draining_node_is_not_healthy(tmp_path: Path) -> None:
    served = Served(tmp_path, "--dram", "4MiB")
    assert page(served, "/healthz") == (200, "ok\n")
    assert CliRunner().invoke(app, ["drain", "--socket", served.path]).exit_code == 0
    assert page(served, "/healthz") == (503, "draining\n")
    assert page(served, "/metrics")[0] == 200
    assert page(served, "/")[0] == 404
    assert served.end() == 0


def test_nobody_listens_unless_told_and_then_on_loopback_alone(node: Served) -> None:
    assert address("9400") == ("127.0.0.1", 9400)
    assert address("[::1]:9400") == ("::1", 9400)
    assert address("0.0.0.0:9400") == ("0.0.0.0", 9400)
    for wrong in ("", "host", "host:", "host:port", ":65536"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            address(wrong)
    with pytest.raises(ConfigError, match=f"no metrics at 127.0.0.1:{node.port}: Address already in use"):
        MetricsServer(dict, "127.0.0.1", node.port)


def test_a_node_that_cannot_have_its_port_does_not_start(node: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvarter.cli.main", "serve", "--dram", "4MiB"]
    command += ["--socket", str(tmp_path / "k" / "s"), "--metrics", str(node.port)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"kvarter: no metrics at 127.0.0.1:{node.port}: Address already in use" in ended.stderr


def test_a_status_that_fails_is_an_error_of_the_page_alone() -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("no status")

    server = MetricsServer(broken, "127.0.0.1", 0)
    with pytest.raises(Exception, match="500"):
        urlopen(f"http://127.0.0.1:{server.port}/healthz")
    server.close()


def test_a_histogram_bounds_its_quantiles_by_powers_of_two() -> None:
    histogram = Histogram()
    assert quantile(histogram.counts()[0], 0.5) is None
    for _ in range(99):
        histogram.record(3e-6)
    histogram.record(1.0)
    buckets, nanoseconds = histogram.counts()
    assert nanoseconds == 99 * 3000 + 10**9
    assert quantile(buckets, 0.5) == quantile(buckets, 0.99) == pytest.approx(4.096e-6)
    assert quantile(buckets, 1.0) == pytest.approx(2**30 / 1e9)
    histogram.record(1e12)
    assert histogram.counts()[0][BUCKETS - 1] == 1
