"""What CPython runs inside the sandbox while it waits for work, and then runs that work.

This is the program's side of `_wasm_turns`: the host reads this file and never imports it.
"""


def _serve() -> None:
    import marshal
    import os
    import sys

    main = sys.modules["__main__"].__dict__
    main["__doc__"] = None
    del main["_serve"]
    status = 0

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                continue  # a program may close, replace or break its streams

    def receive() -> tuple[list[str] | None, dict[str, str], str, str, str | bytes | None]:
        # The host knows a call for work by the size of the read, which carries the status too.
        left, data = int.from_bytes(os.read(0, 0xF0000 + status), "little"), b""
        while len(data) < left:
            data += os.read(0, 65536)
        job: tuple[list[str] | None, dict[str, str], str, str, str | bytes | None]
        job = marshal.loads(data)  # noqa: S302 - it comes from the host
        return job

    def load(name: str) -> tuple[bytes, str]:
        if name == "<stdin>":
            return sys.stdin.buffer.read(), name
        if not name.startswith("/"):
            name = f"//{name}"  # as the interpreter itself names it, whose cwd is the root
        try:
            with open(name, "rb") as file:
                source = file.read()
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            sys.stderr.write(f"python: can't open file {name!r}: {reason}\n")
            raise SystemExit(2) from None
        main["__file__"] = name
        return source, name

    while True:
        flush()
        argv, env, path, name, source = receive()
        os.environ.update(env)
        if argv is not None:
            sys.argv = list(argv)
            sys.orig_argv = ["python", *argv]
            sys.path[0] = path
        try:
            if source is None:
                source, name = load(name)
            exec(compile(source, name, "exec", dont_inherit=True), main)  # noqa: S102
            status = 0
        except SystemExit as error:
            if argv is not None:
                raise  # the interpreter knows best what its code means
            code = error.code
            status = code & 255 if isinstance(code, int) else int(code is not None)
        except BaseException as error:  # noqa: BLE001 - shown as the interpreter shows it
            trace = error.__traceback__ and error.__traceback__.tb_next  # without this file
            sys.excepthook(type(error), error.with_traceback(trace), trace)
            status = 1
        if argv is not None:
            flush()
            raise SystemExit(status)


if __name__ == "__main__":
    _serve()
