"""Programs that would show a difference between an interpreter that waited and one that did not.

They print nothing that differs from run to run by itself: no id of a process, no time, no address.
"""

from __future__ import annotations

PROGRAMS: dict[str, str | bytes] = {
    "nothing": "",
    "a comment alone": "# nothing",
    "no end of line": "print(1)",
    "lines of Windows": "print(1)\r\nif 1:\r\n    print(2)\r\n",
    "who it is": """
import sys
print(__name__, "__file__" in globals(), sys.argv, sorted(globals()), __doc__, __spec__)
print(sys.path, sys.flags, sys.executable, sys.version, sys.orig_argv, sys._xoptions)
print(sorted(sys.modules), sys.warnoptions, sys.getrecursionlimit())
""",
    "its streams": """
import os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.encoding, stream.errors, stream.line_buffering, stream.isatty(), stream.fileno())
for number in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
    except FileNotFoundError:
        print(number, "was for the list")
""",
    "its surroundings": """
import os, resource, sys
print(os.getcwd(), oct(os.umask(0)), sorted(os.environ.items()), os.getuid(), os.getgid())
names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
print([(name, resource.getrlimit(getattr(resource, name))) for name in names])
print(os.getpid() == os.getpgrp(), os.getsid(0) == os.getpid(), os.nice(0), os.getgroups())
print([line for line in open("/proc/self/status") if line.startswith(("Cap", "Sec", "NoNew"))])
print(os.listdir(".") == os.listdir("/workspace"))
""",
    "input": "try:\n    input()\nexcept EOFError:\n    print('the end')",
    "all of its stdin": "import sys; print(repr(sys.stdin.read()), sys.stdin.buffer.read(10))",
    "exit 3": "import sys; sys.exit(3)",
    "exit with a text": "import sys; print('out'); sys.exit('why')",
    "exit with nothing": "raise SystemExit",
    "exit with truth": "raise SystemExit(True)",
    "exit 300": "raise SystemExit(300)",
    "exit -1": "raise SystemExit(-1)",
    "exit at once": "import os; print('lost'); os._exit(7)",
    "an exception": "def f():\n    return 1 / 0\n\n\nf()",
    "an exception of another": (
        "try:\n    {}['a']\nexcept KeyError as error:\n    raise OSError(5) from error"
    ),
    "many exceptions": "raise ExceptionGroup('two', [ValueError(1), TypeError('2')])",
    "too deep": "def f():\n    f()\n\n\nf()",
    "a wrong line": "print('before')\nprint 'it'",
    "a wrong indent": "if 1:\nprint(1)",
    "half a string": "x = 'half",
    "a NUL": b"print(1)\n\0print(2)\n",
    "not UTF-8": b"print('\xff')\n",
    "latin-1, and said so": b"# coding: latin-1\nprint(ascii('\xe9'))\n",
    "a byte order mark": b"\xef\xbb\xbfprint('marked')\n",
    "more than ASCII": "print('\u00e9\u2603\U0001f600')",
    "half a pair": "print('\\udc80')",
    "a future": (
        "from __future__ import annotations\ndef f(x: nowhere): ...\nprint(f.__annotations__)"
    ),
    "a class of its own": "class A: ...\nprint(A, A.__module__, type(A()).__qualname__)",
    "a warning": "import warnings; warnings.warn('mind it')",
    "threads": """
import threading, time
def late():
    time.sleep(0.2)
    print("late")
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(threading.current_thread().name, threading.main_thread() is threading.current_thread())
""",
    "processes": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, 2, -3]), flush=True)
other = multiprocessing.get_context("spawn").Process(target=print)
other.start()  # it looks for the program's file, of which there is none
other.join()
print(other.exitcode)
""",
    "a fork": """
import os, sys
print("once"); sys.stdout.flush()
if (child := os.fork()) == 0:
    sys.exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "a program of its own": (
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', '1/0']))"
    ),
    "at its end": "import atexit; atexit.register(print, 'bye'); print('hi'); raise SystemExit(4)",
    "at its end, badly": "import atexit; atexit.register(divmod, 1, 0)",
    "what it does with signals": """
import signal
print([(number.name, signal.getsignal(number)) for number in sorted(signal.valid_signals())
       if isinstance(number, signal.Signals)], signal.pthread_sigmask(0, []))
""",
    "TERM": "import signal; print('up', flush=True); signal.raise_signal(signal.SIGTERM)",
    "INT": "import signal; signal.raise_signal(signal.SIGINT)",
    "KILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a core": "import os; os.abort()",
    "an alarm": """
import signal
signal.signal(signal.SIGALRM, lambda *_: print("woken"))
signal.setitimer(signal.ITIMER_REAL, 0.1)
signal.pause()
""",
    "asyncio": "import asyncio; print(asyncio.run(asyncio.sleep(0.01, 'slept')))",
    "pickled": "import pickle\nclass A: ...\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "a debugger": "breakpoint()",
    "too much": "print('x' * 3_000_000); import sys; print('y' * 3_000_000, file=sys.stderr)",
    "many lines": "x = 0\n" + "x += 1\n" * 30_000 + "print(x)\n",
    "both streams": "import sys\nfor n in range(50):\n    print(n); print(n, file=sys.stderr)",
    "a closed stdout": "import os; os.close(1); print('nowhere')",
    "what it hashes": "print({'a', 'b'} == {'b', 'a'}, hash(1))",
    "a module of the workspace": "import beside; print(beside.VALUE, beside.__file__)",
}
