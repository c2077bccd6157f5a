"""llm-batch from Python: starts the program, feeds it lines, yields its records as dicts.

    import llm_batch

    for record in llm_batch.run("MODEL_DIR", ["Once upon a time", "What is 70 + 80?"], max_tokens=40):
        print(record["index"], record["text"])

The flags are those of `llm-batch --help` with underscores. No answer depends on how it was started.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import threading
from typing import Any, Deque, Dict, Generator, Iterable, Iterator, List, Mapping, Optional, Union

__all__ = ["Error", "Run", "program", "run"]
__version__ = "0.0.0"  # the wheel's own is put in its place

Line = Union[str, Mapping[str, Any]]
Path = Union[str, "os.PathLike[str]"]

_SOME_LINES_FAILED = 3  # finished; those lines' records say why
_STDERR_LINES_KEPT = 200


class Error(RuntimeError):
    """The program ended with a code other than 0 and 3. The message is the program's own."""

    def __init__(self, message: str, exit_code: int, summary: Optional[Dict[str, Any]]) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # as `llm-batch --help` lists them
        self.summary = summary


def program() -> str:
    """The program that is started: $LLM_BATCH, else the one of this package, else the one in PATH."""
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "llm-batch")
    return os.environ.get("LLM_BATCH") or (bundled if os.path.exists(bundled) else "llm-batch")


def run(model: Path, lines: Optional[Iterable[Line]] = None, *, files: Iterable[Path] = (), **flags: Any) -> Run:
    """Starts `llm-batch -m MODEL` and returns an iterator over its records, in the order in which they are finished.

    lines   prompts (str) or whole input lines (dict, e.g. {"messages": [...]}); read as the program asks for them
    files   names of input files, instead of lines
    flags   max_tokens=40 is --max-tokens 40; True is a flag alone; None and False leave it out; a list gives it several
            times; a dict is given as JSON

    With output="out.jsonl" the job is durable: the same call continues what was cut off. Its records are yielded when it
    is finished.

    Raises Error where the program fails: while iterating, after the records that it wrote. Lines that cannot be answered
    are records with an "error"; they raise nothing.
    """
    names = [os.fspath(name) for name in files]
    if (lines is None) == (not names):
        raise ValueError("give either lines or files")
    if isinstance(lines, (str, bytes, Mapping)):
        raise TypeError("lines: an iterable of prompts, not one of them")
    return Run(os.fspath(model), lines, names, flags)


class Run(Iterator[Dict[str, Any]]):
    """A program that runs. Iterating yields its records. close(), leaving a `with`, or dropping it, ends it early."""

    def __init__(self, model: str, lines: Optional[Iterable[Line]], files: List[str], flags: Mapping[str, Any]) -> None:
        arguments = _arguments(flags)
        if "progress" not in flags:
            arguments += ["--progress", "none"]
        command = [program(), "--model", model, *arguments, *(["--", *files] if files else [])]
        # The threads and the generator know the job, not this object, so that dropping it is noticed.
        self._job = _Job(command, has_lines=lines is not None, shows_stderr="progress" in flags)
        self._records = self._job.read_records(flags.get("output"))
        if lines is not None:
            threading.Thread(target=self._job.feed, args=(lines,), daemon=True).start()

    @property
    def summary(self) -> Optional[Dict[str, Any]]:
        """Once all records are read: {"exit_code": 0, "done": 26, "failed": 0, …}."""
        return self._job.summary

    def __next__(self) -> Dict[str, Any]:
        return json.loads(next(self._records))

    def close(self) -> None:
        """Ends the program at once. An output file stays as it is; the same call continues it."""
        self._job.kill()
        self._records.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_records"):
            self.close()


class _Job:
    """The process, with a thread that reads its stderr."""

    def __init__(self, command: List[str], has_lines: bool, shows_stderr: bool) -> None:
        self.summary: Optional[Dict[str, Any]] = None
        self._failure: Optional[BaseException] = None  # of the caller's lines
        self._stderr: Deque[str] = collections.deque(maxlen=_STDERR_LINES_KEPT)
        self._shows_stderr = shows_stderr
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if has_lines else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._stderr_reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._stderr_reader.start()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def read_records(self, output: Optional[Path]) -> Generator[bytes, None, None]:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            yield from pipe
        code = self._process.wait()
        self._stderr_reader.join()
        self.summary = self._find_summary()
        if self._failure is not None:
            raise self._failure
        if code not in (0, _SOME_LINES_FAILED):
            code = code if code >= 0 else 128 - code
            raise Error(self._error_text() or f"llm-batch ended with code {code}", code, self.summary)
        if output is not None and os.fspath(output) != "-":
            with open(output, "rb") as file:
                yield from file

    def feed(self, lines: Iterable[Line]) -> None:
        try:
            assert self._process.stdin is not None
            with self._process.stdin as pipe:
                for line in lines:
                    text = json.dumps({"prompt": line} if isinstance(line, str) else dict(line))
                    pipe.write(text.encode() + b"\n")
                    pipe.flush()
        except BrokenPipeError:  # the program has ended, and says why
            pass
        except BaseException as error:  # of the caller's lines: raised where the records are read
            self._failure = error
            self._process.kill()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            for raw in pipe:
                text = raw.decode("utf-8", "replace")
                self._stderr.append(text)
                if self._shows_stderr or text.startswith("llm-batch: warning:"):
                    sys.stderr.write(text)

    def _find_summary(self) -> Optional[Dict[str, Any]]:
        for text in reversed(self._stderr):
            if text.startswith("{"):
                try:
                    return json.loads(text)
                except ValueError:
                    pass
        return None

    def _error_text(self) -> str:
        prefix = "llm-batch: error: "
        return "\n".join(text[len(prefix) :].rstrip("\n") for text in self._stderr if text.startswith(prefix))


def _arguments(flags: Mapping[str, Any]) -> List[str]:
    arguments: List[str] = []
    for name, value in flags.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is True:
                arguments.append(flag)
            elif item is not None and item is not False:
                arguments.append(f"{flag}={json.dumps(item) if isinstance(item, dict) else item}")
    return arguments
