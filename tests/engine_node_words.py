"""`kvarter serve` and vLLM engines, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from kvarter.node.control import Control
from kvarter.node.messages import Audit, Done, Status
from served_words import SECONDS, until


class ServedNode:
    """`kvarter serve` in a process of its own."""

    def __init__(self, directory: Path, *options: str, within: Seq[str] = ()) -> None:
        """within: the command that runs it."""
        self.path = str(directory / "node" / "node.sock")
        self._options, self._within = options, within
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "kvarter.cli.main", "serve", "--socket", self.path, *self._options]
        self.process = subprocess.Popen([*self._within, *command])
        until(lambda: self.answers(), "the node serves")

    def answers(self) -> bool:
        try:
            Control(self.path).close()
        except ConnectionError:
            return False
        return True

    def ask(self, question: Any) -> dict[str, Any]:
        control = Control(self.path)
        try:
            answer = control.ask(question, SECONDS)
            assert isinstance(answer, Done)
            return answer.report
        finally:
            control.close()

    def status(self) -> dict[str, Any]:
        return self.ask(Status)

    def idle_ledger(self) -> dict[str, int]:
        """The audited ledger, once nothing is held any more."""

        def settled() -> bool:
            ledger = self.status()["pool"]
            return not (ledger["reserved"] or ledger["leased"] or ledger["quarantined"] or ledger["dead"])

        until(settled, "nothing is held")
        report = self.ask(Audit)
        assert report["findings"] == []
        return report["ledger"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(SECONDS) == 0


class AskedEngine:
    """A vLLM engine in a process of its own."""

    def __init__(self, model: Path, kv: Any, settings: dict[str, Any]) -> None:
        double = Path(__file__).parent / "engine" / "doubles" / "asked_engine.py"
        self.process = subprocess.Popen(
            [sys.executable, str(double)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say({"model": str(model), "kv": kv, "settings": settings})
        assert self._hear() == "ready"

    def _say(self, order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("[", '"')) and not line.startswith("[W"):
                return json.loads(line)
        raise AssertionError("the engine has ended")

    def begin(self, prompts: Any, tokens: int) -> None:
        self._say({"ask": prompts, "tokens": tokens})

    def end(self) -> tuple[list[list[int]], list[int]]:
        replies = self._hear()
        return [reply[0] for reply in replies], [reply[1] for reply in replies]

    def ask(self, prompts: Any, tokens: int) -> tuple[list[list[int]], list[int]]:
        self.begin(prompts, tokens)
        return self.end()

    def drop(self) -> None:
        self._say({"drop": True})
        assert self._hear() == "dropped"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
