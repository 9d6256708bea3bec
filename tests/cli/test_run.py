"""What `ringfence run` does with programs, scripts, streams and exit codes."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

from .conftest import Cli, Done

pytestmark = pytest.mark.slow

FAULT = 125


def fault(done: Done) -> str:
    """Return the one line in which a fault of ours is told."""
    assert done.code == FAULT, done
    assert done.out == b""
    assert done.err.startswith("ringfence: ")
    assert done.err.count("\n") == 1, done.err
    return done.err


# Programs.


def test_the_programs_exit_code_and_both_streams_are_its_own(cli: Cli, backend: str) -> None:
    script = r"printf 'out\377\000\n'; printf 'err\376' >&2; exit 7"
    with cli.started("run", "--backend", backend, "--", "sh", "-c", script) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (7, b"out\xff\0\n", b"err\xfe")


def test_a_signal_is_128_and_its_number(cli: Cli, backend: str) -> None:
    done = cli("run", "--backend", backend, "--", "sh", "-c", "kill -11 $$")
    assert (done.code, done.err) == (128 + 11, "")


def test_what_is_not_found_or_no_program_is_told_on_stderr(cli: Cli) -> None:
    done = cli("run", "--", "no-such-program")
    assert (done.code, done.out, done.err) == (127, b"", "no-such-program: command not found\n")
    done = cli("run", "--", "/etc/passwd")
    assert (done.code, done.out) == (126, b"")
    assert "cannot be executed" in done.err


def test_options_end_where_the_program_begins(cli: Cli) -> None:
    done = cli("run", "--timeout", "20", "echo", "--timeout", "-x", "--", "end")
    assert (done.code, done.out) == (0, b"--timeout -x -- end\n")
    done = cli("run", "--", "printf", "%s|", "", " ", b"\xff", "*", "$HOME", "a'b")
    assert done.out == b"| |\xff|*|$HOME|a'b|"


def test_stdin_is_passed_on_however_much_it_is(cli: Cli, backend: str) -> None:
    data = os.urandom(3_000_000)
    done = cli("run", "--backend", backend, "--", "cat", stdin=data)
    assert (done.code, done.out == data, done.err) == (0, True, "")


def test_output_comes_as_it_is_written_and_is_not_cut(cli: Cli) -> None:
    script = "echo first; read line; head -c 5000000 /dev/zero"
    with cli.started("run", "--", "sh", "-c", script) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == b"first\n"  # while it waits for us
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        assert len(process.stdout.read()) == 5_000_000
        assert process.wait(30) == 0


def test_a_stdin_that_never_ends_does_not_hold_up_the_end(cli: Cli) -> None:
    with cli.started("run", "--", "echo", "done") as process:
        assert process.wait(30) == 0  # its stdin is a pipe that is open still


def test_a_reader_that_leaves_ends_it_quietly(cli: Cli) -> None:
    with cli.started("run", "--", "yes") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


def test_standard_streams_may_be_closed(cli: Cli) -> None:
    def shell(redirections: str) -> subprocess.CompletedProcess[bytes]:
        script = f'exec "$@" {redirections}'
        command = ["sh", "-c", script, "sh", *cli.argv, "run", "--", "sh", "-c", "cat; echo out"]
        return subprocess.run(
            command, cwd=cli.directory, env=cli.environ, capture_output=True, timeout=30
        )

    assert (shell("<&-").returncode, shell("<&-").stdout) == (0, b"out\n")
    assert (shell(">&- </dev/null").returncode, shell(">&- </dev/null").stderr) == (0, b"")
    assert shell(">&- 2>&- <&-").returncode == 0


def test_a_full_disk_is_our_fault_and_not_the_programs(cli: Cli) -> None:
    with open("/dev/full", "wb") as full, cli.started("run", "echo", "x", stdout=full) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == FAULT
    assert b"No space left" in err


# Limits.


def test_a_timeout_ends_all_and_keeps_the_output(cli: Cli, backend: str) -> None:
    script = "printf begun; sleep 3141 & sleep 3141"
    for timeout, said in (("0.5", "500 ms"), ("10", "10 s")):
        done = cli("run", "--backend", backend, "--timeout", timeout, "--", "sh", "-c", script)
        wanted = f"ringfence: timed out after {said}; all that it had started was killed\n"
        assert (done.code, done.err) == (124, wanted)
        if done.out:  # a busy machine may not have come to it in the shorter time
            break
    assert done.out == b"begun"


def test_a_timeout_of_more_than_five_minutes_is_had(cli: Cli) -> None:
    done = cli("run", "--timeout", "2h", "--json", "true")
    assert done.json["timeout"] == 7200.0
    assert done.json["limits"]["max_age"] > 7200.0


def test_the_memory_limit_is_told_from_a_kill(cli: Cli) -> None:
    done = cli("run", "--memory", "32m", "--", "tail", "/dev/zero")
    assert (done.code, done.err) == (137, "ringfence: killed at its memory limit of 32 MiB\n")
    done = cli("run", "--memory", "32m", "--", "sh", "-c", "kill -9 $$")
    assert (done.code, done.err) == (137, "")


def test_a_limit_that_nobody_can_hold_is_refused(cli: Cli) -> None:
    done = cli("run", "--backend", "process", "--pids", "10", "true")
    assert "process can't enforce pids" in fault(done)


# Scripts.


def test_a_python_script_gets_its_arguments_and_stdin(cli: Cli, backend: str) -> None:
    cli.write("job.py", "import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(3)\n")
    done = cli("run", "--backend", backend, "job.py", "--json", "-x", "a b", stdin=b"in")
    assert (done.code, done.out) == (3, b"['--json', '-x', 'a b'] in\n")


def test_a_script_of_any_name_in_any_directory(cli: Cli) -> None:
    for name in ("-c.py", "dir/it's.py", "x y.sh"):
        cli.write(name, "print('ran')" if name.endswith(".py") else "echo ran")
        assert cli("run", f"./{name}").out == b"ran\n"


def test_a_shell_script(cli: Cli, backend: str) -> None:
    cli.write("job.sh", 'echo "$1"; cat; exit 4\n')
    done = cli("run", "--backend", backend, "job.sh", "an argument", stdin=b"input")
    assert (done.code, done.out) == (4, b"an argument\ninput")


def test_python_from_stdin(cli: Cli, backend: str) -> None:
    done = cli("run", "--backend", backend, "-", "one", stdin=b"import sys; print(sys.argv)")
    assert (done.code, done.out) == (0, b"['-', 'one']\n")


def test_print_is_not_held_back(cli: Cli) -> None:
    cli.write("job.py", "print('first'); input(); print('second')")
    with cli.started("run", "job.py") as process:
        assert process.stdout
        assert process.stdout.readline() == b"first\n"
        out, _ = process.communicate(b"\n", timeout=30)
        assert out == b"second\n"


def test_after_two_dashes_it_is_a_program_whatever_it_looks_like(cli: Cli) -> None:
    cli.write("job.py", "print('ran')")
    done = cli("run", "--", "job.py")
    assert done.code == 127
    assert "job.py: command not found\nringfence: job.py is a file of this machine" in done.err


def test_a_script_that_is_not_there(cli: Cli) -> None:
    assert "there is no script 'nope.py'" in fault(cli("run", "nope.py"))


# Interpreters.


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that has a module of its own."""
    prefix = tmp_path / "env with space"
    venv.create(prefix, symlinks=True, with_pip=False)
    site = next(prefix.glob("lib/python3*/site-packages"))
    (site / "only_here.py").write_text("found = 'in the environment'")
    return prefix


def test_a_virtual_environment_is_shown_when_it_is_asked_for(
    cli: Cli, backend: str, environment: Path
) -> None:
    cli.write("job.py", "import only_here, sys; print(only_here.found, sys.prefix)")
    active = str(environment)
    expected = f"in the environment {environment}\n".encode()
    run = ("run", "--backend", backend)
    assert b"ModuleNotFoundError" in cli(*run, "job.py", VIRTUAL_ENV=active).err.encode()
    assert cli(*run, "--with-venv", "job.py", VIRTUAL_ENV=active).out == expected
    assert cli(*run, "--python", f"{environment}/bin/python", "job.py").out == expected
    done = cli(*run, "--with-venv", "--", "python", "job.py", VIRTUAL_ENV=active)
    assert done.code == 2  # python itself ran; a program gets no copy of a file it names
    script = "import only_here; print(only_here.found)"
    done = cli(*run, "--with-venv", "--", "python", "-c", script, VIRTUAL_ENV=active)
    assert done.out == b"in the environment\n"


def test_an_interpreter_that_is_none_is_refused(cli: Cli, environment: Path) -> None:
    cli.write("job.py", "")
    shim = cli.write("bin/python", "#!/bin/sh\nexec python3 $@\n")
    shim.chmod(0o755)
    run = ("run", "--python")
    assert "in no Python installation" in fault(cli(*run, str(shim), "job.py"))
    assert "no Python interpreter" in fault(cli(*run, "/no/python", "job.py"))
    assert "two interpreters" in fault(cli(*run, "python3", "--with-venv", "job.py"))


# Files, mounts and variables.


def test_files_are_copied_into_the_workspace(cli: Cli, backend: str) -> None:
    cli.write("a.txt", "A")
    cli.write("sub/b:c.txt", "B").chmod(0o751)
    files = ("-f", "a.txt", "-f", "sub/b:c.txt", "--file", "a.txt:in/dir/", "-f", "a.txt:other")
    script = "cat a.txt b:c.txt in/dir/a.txt other; stat -c %a b:c.txt; pwd"
    done = cli("run", "--backend", backend, *files, "--", "sh", "-c", script)
    assert done.code == 0
    assert done.out.startswith(b"ABAA751\n/")


def test_a_large_file_is_copied_whole(cli: Cli) -> None:
    (cli.directory / "large").write_bytes(bytes(20_000_001))
    assert cli("run", "-f", "large", "--", "wc", "-c", "large").out == b"20000001 large\n"


def test_what_can_not_be_copied_is_refused(cli: Cli) -> None:
    cli.write("a.txt", "A")
    os.mkfifo(cli.directory / "fifo")
    assert "there is no file 'nope'" in fault(cli("run", "-f", "nope", "true"))
    assert "'.' is a directory" in fault(cli("run", "-f", ".", "true"))
    assert "there is no file 'fifo'" in fault(cli("run", "-f", "fifo", "true"))
    assert "outside of the workspace" in fault(cli("run", "-f", "a.txt:/etc/a", "true"))
    assert "'..'" in fault(cli("run", "-f", "a.txt:../a", "true"))


def test_mounts_are_read_only(cli: Cli) -> None:
    cli.write("data/x.txt", "X")
    script = "cat /data/x.txt; echo more > /data/x.txt"
    done = cli("run", "--mount", "data:/data", "--", "sh", "-c", script)
    assert done.out == b"X"
    assert "Read-only" in done.err
    assert (cli.directory / "data/x.txt").read_text() == "X"
    assert "does not exist" in fault(cli("run", "--mount", "nope:/x", "true"))
    assert "absolute" in fault(cli("run", "--mount", "data:relative", "true"))


def test_variables_are_those_that_were_given(cli: Cli) -> None:
    shown = ("run", "-e", "A=1=2", "--env", "SHARED", "--", "env")
    done = cli(*shown, SHARED="passed on", SECRET="kept")
    lines = set(done.out.decode().splitlines())
    assert {"A=1=2", "SHARED=passed on"} <= lines
    assert "SECRET" not in done.out.decode()
    assert "no such variable" in fault(cli("run", "--env", "NOT_SET", "true"))
    assert "may not be empty" in fault(cli("run", "--env", "=x", "true"))


# Export.


def test_the_workspace_is_exported_and_what_is_left_out_is_told(cli: Cli, backend: str) -> None:
    script = "mkdir d; echo x > d/file; ln -s /etc/passwd link; mkfifo fifo; exit 5"
    done = cli("run", "--backend", backend, "--export", "out/new", "--", "sh", "-c", script)
    assert done.code == 5
    assert (cli.directory / "out/new/d/file").read_text() == "x\n"
    assert os.listdir(cli.directory / "out/new") == ["d"]
    target = cli.directory / "out/new"
    assert done.err.splitlines() == [
        f"ringfence: exported 1 file (2 B) to {target}",
        "ringfence: not exported: fifo: a FIFO",
        "ringfence: not exported: link: a link",
    ]


def test_what_a_timed_out_command_wrote_is_exported(cli: Cli) -> None:
    script = "echo partial > file; sleep 100"
    file = cli.directory / "out/file"
    for timeout in ("0.5", "10"):
        done = cli("run", "--timeout", timeout, "--export", "out", "--", "sh", "-c", script)
        assert done.code == 124
        if file.exists():  # a busy machine may not have come to it in the shorter time
            break
    assert file.read_text() == "partial\n"


def test_names_can_not_steer_the_terminal(cli: Cli) -> None:
    script = r"ln -s x $(printf 'a\033[31m\377')"
    done = cli("run", "--export", "out", "--", "sh", "-c", script)
    assert r"not exported: a\x1b[31m\xff: a link" in done.err


def test_a_target_that_is_no_directory(cli: Cli) -> None:
    cli.write("file", "mine")
    done = cli("run", "--export", "file", "echo", "ran")
    assert done.code == FAULT
    assert "no directory to export to" in done.err


# JSON.


def test_one_object_tells_all(cli: Cli, backend: str) -> None:
    script = "echo out; echo err >&2; echo x > file; exit 3"
    done = cli("run", "--backend", backend, "--json", "--export", "o", "--", "sh", "-c", script)
    told = done.json
    assert done.code == 3
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("out\n", "err\n", 3)
    assert told["exit_reason"] == "exited"
    assert told["backend"] == backend
    assert told["isolation"] == {"bubblewrap": "namespace", "process": "process"}[backend]
    assert told["export"]["files"][0]["path"] == "file"
    assert set(told["enforced"]) >= {"memory_bytes", "cpus", "pids"}


def test_what_is_cut_is_told(cli: Cli) -> None:
    done = cli("run", "--json", "--output-size", "1k", "--", "head", "-c", "5000", "/dev/zero")
    assert done.json["stdout_truncated"]
    assert (len(done.json["stdout"]), done.json["stdout_bytes"]) == (1024, 5000)
    assert "stdout was cut: 1 KiB of 4.88 KiB" in done.err


def test_stdin_and_timeouts_with_json(cli: Cli) -> None:
    assert cli("run", "--json", "cat", stdin=b"x" * 200_000).json["stdout_bytes"] == 200_000
    done = cli("run", "--json", "--timeout", "0.3", "sleep", "100")
    assert (done.code, done.json["exit_reason"]) == (124, "timed_out")


def test_a_fault_is_an_object_too(cli: Cli) -> None:
    done = cli("run", "--json", "nope.py")
    assert done.code == FAULT
    assert done.json["error"]["code"] == "config"
    assert done.err.startswith("ringfence: there is no script")


# Faults.


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--bogus", "true"), "No such option: --bogus"),
        (("--timeout",), "requires an argument"),
        ((), "Missing argument"),
        (("--memory", "5q", "true"), "--memory: '5q' is not a size"),
        (("--timeout", "0", "true"), "--timeout: '0' is not a time"),
        (("--cpus", "nan", "true"), "--cpus: 'nan' is not a number"),
        (("--pids", "-1", "true"), "--pids: '-1' is not a whole number"),
        (("--backend", "dokcer", "true"), "did you mean 'docker'?"),
        (("--backend", "kubernetes", "true"), "needs an image"),
        (("--root-dir", "/nope", "true"), "not a root file system"),
        (("--backend", "process", "--root-dir", "/", "true"), "not a setting of the process"),
        (("",), "at least the name of a program"),
    ],
)
def test_bad_input_is_one_clear_line(cli: Cli, args: tuple[str, ...], said: str) -> None:
    assert said in fault(cli("run", *args))


def test_no_jail_is_never_answered_with_none(cli: Cli) -> None:
    done = cli("run", "id", RINGFENCE_BWRAP_PATH="/bin/false")
    assert "no backend that isolates can run here" in fault(done)


def test_a_traceback_is_there_for_who_asks(cli: Cli) -> None:
    assert "Traceback" not in cli("run", "nope.py").err
    done = cli("run", "nope.py", RINGFENCE_DEBUG="1")
    assert done.code == FAULT
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("ringfence: there is no script")
