"""`ringfence run --backend wasm` and `ringfence wasm prepare`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.cli.job import parse_job
from ringfence.cli.wasm_job import as_program, settings_for
from ringfence.errors import ConfigError
from ringfence.settings import Settings

WORDS = Path(__file__).parent / "data" / "words.wasm"


def ringfence(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringfence", *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )


def wasm(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return ringfence("run", "--backend", "wasm", *args, stdin=stdin)


def test_a_module_is_run_with_its_arguments_and_streams() -> None:
    done = wasm(WORDS, "a", "b c", stdin="one two three")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "hello from words.wasm with 2 argument(s)"
    assert lines[1:4] == ["  1: a", "  2: b c", "words read: 3"]


def test_its_files_are_exported(tmp_path: Path) -> None:
    done = wasm("--export", tmp_path / "out", WORDS, stdin="one two")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "count.txt").read_text() == "2\n"


def test_json_says_where_it_ran() -> None:
    found = json.loads(wasm("--json", WORDS).stdout)
    assert (found["backend"], found["isolation"], found["exit_code"]) == ("wasm", "wasm", 0)


@pytest.mark.parametrize("args", [["ls"], ["--", "x.py"], ["script.sh"]])
def test_what_it_can_t_run_is_refused(args: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text("echo")
    given = [str(tmp_path / arg) if arg.endswith(".sh") else arg for arg in args]
    done = wasm(*given)
    assert done.returncode == 125
    assert "it runs .py and .js scripts" in done.stderr


def test_a_module_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.wasm").write_text("no module")
    for name in ("x.wasm", "no.wasm"):
        done = wasm(tmp_path / name)
        assert done.returncode == 125
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


def test_a_missing_script_is_refused() -> None:
    with pytest.raises(ConfigError, match="no script"):
        as_program(parse_job(["no.js"], [], is_literal=False))


def test_python_names_the_scientific_one(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("")
    job = parse_job([str(script)], [], is_literal=False)
    assert settings_for(job, Settings()) == {"interpreter": "python"}
    chosen = settings_for(job, Settings(python="python-scientific"))
    assert chosen == {"interpreter": "python-scientific"}


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestScripts:
    def test_python(self, tmp_path: Path) -> None:
        script = tmp_path / "x.py"
        script.write_text("import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(5)")
        done = wasm(script, "a", "", stdin="in")
        assert (done.stdout, done.returncode) == ("['a', ''] in\n", 5)

    def test_python_from_stdin(self) -> None:
        assert wasm("-", stdin="print(6 * 7)").stdout == "42\n"

    def test_a_timeout(self, tmp_path: Path) -> None:
        script = tmp_path / "x.py"
        script.write_text("print(1, flush=True)\nwhile True: pass")
        for timeout in ("1", "20"):
            done = wasm("--timeout", timeout, script)
            assert done.returncode == 124
            assert f"timed out after {timeout} s" in done.stderr
            if done.stdout:  # a busy machine may not come to it in the shorter time
                break
        assert done.stdout == "1\n"

    def test_javascript_with_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.js").write_text("console.log(scriptArgs.join(), std.loadFile('data'))")
        (tmp_path / "data").write_text("text")
        done = wasm("--file", tmp_path / "data", tmp_path / "x.js", "a")
        assert done.stdout == "", done.stdout  # std has to be asked for, as in the interpreter
        load = "console.log(scriptArgs.join(), std.loadFile('data'))"
        (tmp_path / "x.js").write_text(f"import * as std from 'qjs:std'\n{load}")
        done = wasm("--file", tmp_path / "data", tmp_path / "x.js", "a")
        assert done.stdout == "x.js,a text\n", done.stderr

    def test_prepare_says_what_was_there(self) -> None:
        ringfence("wasm", "prepare", "javascript")
        done = ringfence("wasm", "prepare", "javascript")
        assert (done.stdout, done.returncode) == ("javascript: was there\n", 0)

    def test_prepare_knows_its_interpreters(self) -> None:
        done = ringfence("wasm", "prepare", "cobol")
        assert done.returncode == 125
        assert "known are python" in done.stderr
