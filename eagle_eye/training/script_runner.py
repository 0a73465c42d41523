"""Runs a script (`python …`) inside a process that already is an interpreter.

Same `sys.argv`, `sys.path[0]`, `__main__` and `__file__`, the same exit codes and the same text on stderr; so
classes of the script can be pickled and `multiprocessing` finds the script again.
"""

import atexit
import io
import runpy
import shutil
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

from . import exception_reporter

CANNOT_OPEN = 2
"""Exit code of `python missing.py`."""
_OPTIONS = frozenset({"-u"})
"""Options of the interpreter that change nothing here: our output is flushed line by line anyway."""


def interpreter_of(argv: Sequence[str]) -> str | None:
    """Path of the interpreter that `argv` asks for, None if `argv` cannot be run inside one that already runs.

    That is the case for other programs, for options such as -O or -X, and for a script fed on stdin.
    """
    if not argv or not Path(argv[0]).name.startswith("python"):
        return None
    rest = _without_options(argv[1:])
    if not rest or (rest[0].startswith("-") and rest[0] not in {"-m", "-c"}):
        return None
    if rest[0].startswith("-") and len(rest) < 2:
        return None
    return shutil.which(argv[0]) or (sys.executable if "/" not in argv[0] else None)


def is_ours(argv: Sequence[str]) -> bool:
    """Whether this very interpreter (the same environment, not only the same program) is asked for."""
    path = interpreter_of(argv)
    return path is not None and Path(path).absolute().parent == Path(sys.executable).absolute().parent


def run(argv: Sequence[str]) -> int:
    """Run `python …` to its end, exit handlers included, and return its exit code; negative: the signal to die of."""
    code = _outcome(_entry(_without_options(argv[1:])))
    _finish()
    return code


def _without_options(rest: Sequence[str]) -> list[str]:
    rest = list(rest)
    while rest and rest[0] in _OPTIONS:
        del rest[0]
    return rest


def _entry(rest: list[str]) -> Callable[[], None]:
    if rest[0] == "-m":
        return lambda: _module(rest[1], rest[2:])
    if rest[0] == "-c":
        return lambda: _source(rest[1], rest[2:])
    return lambda: _file(rest[0], rest[1:])


def _outcome(entry: Callable[[], None]) -> int:
    try:
        entry()
    except SystemExit as stop:  # what its frames hold is let go of behind it, connections to its peers too
        code = _exit_code(stop.code)
        if stop.__context__ is None:  # else an exception made it end, perhaps that a peer was gone
            _note_end(code)
        return code
    except KeyboardInterrupt as error:
        _report(error)
        return -signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - this is the interpreter's own last resort, played by us
        _report(error)
        return 1
    _note_end(0)
    return 0


def _note_end(code: int) -> None:
    """Unless threads of the script go on."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        exception_reporter.script_ended(code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr, flush=True)  # noqa: T201 - what sys.exit("words") does
    return 1


def _report(error: BaseException) -> None:
    error = error.with_traceback(_own(error.__traceback__))  # the hook prints the one that the error carries
    sys.excepthook(type(error), error, error.__traceback__)


def _own(traceback: TracebackType | None) -> TracebackType | None:
    """The script's part of a traceback: without our frames, and those of runpy, at its head."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
        traceback = traceback.tb_next
    return traceback


def _finish() -> None:
    """What the interpreter does on its way out: wait for threads, run exit handlers, flush."""
    getattr(threading, "_shutdown", lambda: None)()
    getattr(atexit, "_run_exitfuncs", lambda: None)()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, gone or replaced by the script
            continue


def _main_module(file: str | None) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if file is not None:
        main.__file__ = file
        main.__dict__["__cached__"] = None
        main.__loader__ = SourceFileLoader("__main__", file)
    sys.modules["__main__"] = main
    return main


def _begin(argv0: str, rest: list[str], directory: str) -> None:
    sys.argv = [argv0, *rest]
    if not sys.flags.safe_path:
        sys.path[0] = directory
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:  # it remembers where the interpreter was started, to start its children there
        processes.__dict__["ORIGINAL_DIR"] = str(Path.cwd())


def _file(script: str, rest: list[str]) -> None:
    path = Path(script).absolute()
    if path.is_dir():  # a folder or a zip file with a __main__.py
        _begin(script, rest, str(path))
        runpy.run_path(script, run_name="__main__")
        return
    try:
        with io.open_code(str(path)) as file:
            text = file.read()
    except OSError as error:
        print(  # noqa: T201 - the interpreter's own words
            f"{sys.executable}: can't open file {str(path)!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
            flush=True,
        )
        exception_reporter.report(type(error), error, None)  # no hook is called for a script that cannot even be read
        raise SystemExit(CANNOT_OPEN) from error
    _begin(script, rest, str(path.resolve().parent))
    main = _main_module(str(path))
    exec(compile(text, str(path), "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's own script


def _source(text: str, rest: list[str]) -> None:
    _begin("-c", rest, "")
    main = _main_module(None)
    exec(compile(text, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's own command


def _module(name: str, rest: list[str]) -> None:
    _begin("-m", rest, str(Path.cwd()))
    _main_module(None)
    # what the interpreter itself calls for -m; the public run_module leaves no lasting __main__ behind
    runpy._run_module_as_main(name, alter_argv=True)  # type: ignore[attr-defined]
