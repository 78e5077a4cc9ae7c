"""`pagedkv peers`: what is told of a manager that is sound, broken, absent, or the death of its process.

The peers here are the tests' own; those that others wrote are tried in `test_peer_*`, where they are installed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pagedkv.bench import peer_process, peers_campaign
from pagedkv.bench.command_line import run
from pagedkv.bench.peer_process import Server, read_written_down
from pagedkv.bench.peers import PEERS, peer_of
from pagedkv.bench.peers_campaign import LONG, run_campaign
from pagedkv.bench.peers_report import cell, markdown, verdicts
from pagedkv.spec import fuzz
from pagedkv.spec.outside import OUTSIDE
from pagedkv.spec.refusals import Broken


class InThisProcess:
    """A peer asked where the test runs."""

    def __init__(self, name: str) -> None:
        self.peer = peer_of(name)
        self.server = Server(self.peer)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Ask at once."""
        return getattr(self.server, method)(*arguments)


def judged(name: str, operations: int) -> peers_campaign.Campaign:
    """Run a campaign here."""
    return run_campaign(InThisProcess(name), operations, 0)  # type: ignore[arg-type]


def test_behind_a_broken_rule_the_others_are_judged() -> None:
    campaign = judged("planted_faults:CopySourceFreed", 6_000)
    assert campaign.operations >= 6_000
    rules = [finding.broken.rule for finding in campaign.findings]
    assert len(set(rules)) == len(rules) >= 2
    assert {"R-LIFE-1", "R-LIFE-8"} <= set(rules)
    assert all(len(finding.trace) <= LONG for finding in campaign.findings)


def test_a_campaign_can_be_repeated() -> None:
    first, second = (judged("planted_faults:OffByOne", 2_000) for _ in range(2))
    assert first.findings
    assert [(f.broken.detail, f.trace) for f in first.findings] == [(f.broken.detail, f.trace) for f in second.findings]
    assert (first.operations, first.seeds) == (second.operations, second.seeds)


def test_what_is_written_down_is_what_was_run(tmp_path: Path) -> None:
    """The world, too: in another one the operations would mean something else, and nothing would show again."""
    server = InThisProcess("planted_faults:OffByOne").server
    found = [tally for seed in range(6) if (tally := fuzz.run(server.plan(frozenset()), seed)).finding]
    assert len(found) > 1
    for tally in found:
        file = tmp_path / f"{tally.seed}"
        assert server.run_written_down(tally.seed, frozenset(), file).operations == tally.operations
        case, *trace = read_written_down(file)
        assert tally.finding is not None
        assert (case, tuple(trace)) == (tally.finding.case, tally.finding.trace)


def test_ours_and_what_it_offers_are_told() -> None:
    campaign = judged("impl", 1_500)
    assert campaign.findings == []
    assert campaign.about["discipline"] == "fence"
    assert campaign.about["not_judged"] == {}
    assert {verdict["verdict"] for verdict in verdicts(campaign.about, [], campaign.fired).values()} == {"kept"}


def test_a_death_a_leak_and_an_absence_do_not_end_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers_campaign, "DEATHS_MAX", 1)
    names = ["hostile_managers:Dies", "outside_managers:Leaks", "nobody:Here"]
    out, file = tmp_path / "found", tmp_path / "peers.json"
    assert run(["peers", *names, "--operations", "300", "--out", str(out), "--json", str(file)]) == 1
    told = {peer["name"]: peer for peer in json.loads(file.read_text())["peers"]}
    assert list(told) == names
    assert told["nobody:Here"]["missing"].startswith("not installed: ")
    (death,) = told["hostile_managers:Dies"]["findings"]
    assert death["rule"] == "CRASH"
    assert "exit code 3" in death["detail"]
    assert not death["shown_again"]
    assert "picture" not in death
    assert json.loads(Path(death["trace"]).read_text())["operations"][-1][0] == "extend"
    leak = next(each for each in told["outside_managers:Leaks"]["findings"] if each["rule"] == "R-OWN-4")
    assert (leak["length"], leak["shown_again"]) == (2, True)
    page = Path(leak["report"]).read_text()
    for part in ("outside_managers:Leaks", OUTSIDE["R-OWN-4"].sentence, "grow(", leak["again"], leak["found_by"]):
        assert part in page
    assert Path(leak["picture"]).is_file()
    table = (out / "peers.md").read_text()
    assert "| R-OWN-4 | not met | broken (2) |" in table  # the counts of the one died with it
    assert told["hostile_managers:Dies"]["ended"] == "deaths of its process: 1"
    assert "| CRASH | broken (" in table
    shown = capsys.readouterr().out
    assert "nobody:Here: not installed: put it on PYTHONPATH" in shown
    assert run(["fuzz", "--again", leak["trace"]]) == 1
    assert "R-OWN-4 does not hold after 2 operations" in capsys.readouterr().out


class Dying(InThisProcess):
    """A peer whose process dies in every round; written down, it dies before its first operation, or lives."""

    def __init__(self, *, lives_alone: bool) -> None:
        super().__init__("impl")
        self.lives_alone = lives_alone

    def ask(self, method: str, *arguments: Any) -> Any:
        """Answer what is asked about, and die of what is to be run."""
        if method == "run" or (method == "run_written_down" and not self.lives_alone):
            raise Broken("CRASH", "its process ended")
        return super().ask(method, *arguments)


def test_a_campaign_that_its_deaths_ended_says_so_and_keeps_nothing() -> None:
    """Nothing was judged, so nothing is kept; a death that no operation is known of is a crash all the same."""
    campaign = run_campaign(Dying(lives_alone=False), 100_000, 0)  # type: ignore[arg-type]
    assert campaign.ended == "deaths of its process: 3"
    assert campaign.untraced == [f"seed {seed}, before its first operation: its process ended" for seed in range(3)]
    told = verdicts(campaign.about, [], campaign.fired, campaign.untraced)
    assert cell(told.pop("CRASH")) == "broken"
    assert {cell(verdict) for verdict in told.values()} == {"not met"}


def test_deaths_that_do_not_show_again_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_campaign, "ROUND_OPERATIONS", 1)
    campaign = run_campaign(Dying(lives_alone=True), 100_000, 0)  # type: ignore[arg-type]
    assert campaign.untraced == ["once, and not again: its process ended"] * 3
    assert campaign.ended
    told = verdicts(campaign.about, [], campaign.fired, campaign.untraced)
    assert (cell(told["R-TXN-1"]), cell(told["CRASH"])) == ("kept", "broken")  # what lived is judged


@pytest.mark.deep
def test_a_hang_that_cannot_be_interrupted_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_campaign, "DEATHS_MAX", 1)
    monkeypatch.setattr(peer_process, "ROUND_S_MAX", 40.0)
    file = tmp_path / "peers.json"
    words = ["--operations", "300", "--out", str(tmp_path / "out"), "--json", str(file)]
    assert run(["peers", "hostile_managers:HangsForGood", *words]) == 1
    ((finding,),) = (peer["findings"] for peer in json.loads(file.read_text())["peers"])
    assert (finding["rule"], finding["detail"]) == ("CRASH", "a round was not done within 40 s")


def test_a_name_that_is_none_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["peers", "vlllm"]) == 2
    assert "vlllm: no such peer; name some of " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nobody:Here", "hostile_managers:Nobody", "hostile_managers:not_a_manager"])
def test_where_nothing_that_is_named_can_be_judged_it_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(["peers", name, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out.startswith(f"{name}: ")
    assert told.err == "pagedkv: peers: none that is named can be judged; name what can be imported here\n"
    assert not (tmp_path / "out" / "peers.md").exists()


def test_a_function_that_makes_a_scheduler_is_judged_as_one(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    words = ["--operations", "50", "--out", str(tmp_path / "out"), "--json", str(file)]
    assert run(["peers", "hostile_managers:a_scheduler", *words]) == 0
    (told,) = json.loads(file.read_text(encoding="utf-8"))["peers"]
    assert (told["level"], told["rules"]["R-PRE-2"]["verdict"]) == ("scheduler", "kept")


def test_the_registry_imports_nobody(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer that is not there is one line, with how to get it, wherever it is named."""
    peer = PEERS["mini_sglang"]
    assert all(each.name == name for name, each in PEERS.items())
    monkeypatch.setitem(PEERS, "absent", peer._replace(name="absent", adapter="peer_absent:Absent"))
    assert run(["fuzz", "--target", "pagedkv.bench.peers:absent"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert error.endswith(f"; {peer.how}\n")


def test_versions_are_told_of_what_is_installed_and_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PEERS["torch_paged_attention"].version().startswith("2.")
    package = tmp_path / "source" / "python" / "strangers_cache"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "source" / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    git = tmp_path / "source" / ".git"
    (git / "refs").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/main\n")
    (git / "refs" / "main").write_text("0123456789abcdef\n")
    monkeypatch.syspath_prepend(package.parent)
    peer = PEERS["nano_vllm"]._replace(distribution="strangers-cache", package="strangers_cache")
    assert peer.is_installed()
    assert peer.version() == "1.2.3 (commit 0123456)"
    assert not peer._replace(package="nobody_here").is_installed()


def test_verdicts_in_words() -> None:
    rules = {"R-DATA": ["launch"], "R-COW-1": ["launch"], "R-TAB-1": ["add", "launch"], "R-HASH-6": ["clear"]}
    about = {"rules": rules, "not_judged": {"R-COW-1": "no fork"}}
    told = verdicts(about, [{"rule": "R-DATA", "length": 7}], {"launch": 3, "clear": 0})
    assert {rule: cell(verdict) for rule, verdict in told.items()} == {
        "R-DATA": "broken (7)",
        "R-COW-1": "not offered",
        "R-TAB-1": "kept",
        "R-HASH-6": "not met",
        "CRASH": "kept",
    }
    assert cell(None) == "-"
    assert markdown([["rule", "a"], ["R-DATA", "kept"]]) == ["| rule | a |", "|---|---|", "| R-DATA | kept |"]
