// llm_batch.run() of the Python package: the program's records as dicts, its failures as exceptions.
#include <doctest/doctest.h>

#include "tests/e2e/has_program.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace {

// `code` after imports, with the package, the built program and the bundled model at hand; "" where all of it holds.
std::string run_python(const std::string& code) {
  if (!has_program("python3")) {
    skip("no python3");
    return "";
  }
  const TemporaryDirectory dir;
  write_file(dir.file("test.py"), "import llm_batch, os, sys, time\nmodel, dir = sys.argv[1:]\n" + code);
  const std::string source = source_dir() + "/tools/package";
  const ProcessResult result = run_shell("PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=error PYTHONPATH=" + source + " LLM_BATCH=" +
                                         kProgram + " python3 " + dir.file("test.py") + " " + kModel + " " + dir.path());
  return result.exit_code == 0 && result.err.empty() ? "" : result.err + std::to_string(result.exit_code);
}

}  // namespace

TEST_CASE("run() yields the program's records, and the summary is there afterwards") {
  const auto expected = answer(R"({"prompt":"Once upon a time","max_tokens":8})")["text"].get<std::string>();
  CHECK(run_python(R"(
job = llm_batch.run(model, ["Once upon a time", {"id": "b", "prompt": "Once upon a time"}], max_tokens=8, order="input",
                    no_metrics=True, ignore_eos=False, seed=None)
records = list(job)
assert [r["text"] for r in records] == [)" + nlohmann::json(expected).dump() + R"(] * 2, records
assert [r["id"] for r in records] == [None, "b"] and "metrics" not in records[0], records
assert job.summary["done"] == 2 and job.summary["exit_code"] == 0, job.summary
assert list(llm_batch.run(model, [])) == []
)") == "");
}

TEST_CASE("flags are given as the command line has them") {
  CHECK(run_python(R"(
def text(**flags):
    return next(llm_batch.run(model, ["Once upon a time"], max_tokens=20, **flags))["text"]
whole = text()
assert len(whole) > 20
words = whole.split()
assert text(stop=[words[3], words[2]]).split() == words[:2], whole
first = next(llm_batch.run(model, ["Once upon a time"], max_tokens=1, return_token_ids=True))["token_ids"][0]
assert text(logit_bias={str(first): -100}) != whole
assert text(stop_token_ids=first) == ""
)") == "");
}

TEST_CASE("a line that cannot be answered is a record with an error, and raises nothing") {
  CHECK(run_python(R"(
records = list(llm_batch.run(model, ["Once", {"prompt": 5}], max_tokens=2, order="input"))
assert "error" not in records[0] and records[1]["error"]["message"], records
)") == "");
}

TEST_CASE("the program's failures are raised with its own text and exit code") {
  CHECK(run_python(R"(
def failure(*arguments, **flags):
    try:
        list(llm_batch.run(*arguments, **flags))
    except llm_batch.Error as error:
        return error
error = failure(dir + "/none", ["a"] * 100000)
assert error.exit_code == 4 and str(error).startswith(dir + "/none: no such directory"), error
assert error.summary["exit_code"] == 4, error.summary
error = failure(model, ["a"], no_such_flag=1)
assert error.exit_code == 2 and "--no-such-flag" in str(error) and error.summary is None, error
error = failure(model, files=[dir + "/none.jsonl"])
assert error.exit_code == 5 and "none.jsonl" in str(error), error
)") == "");
}

TEST_CASE("an exception in the caller's lines reaches the caller; wrong arguments are refused at once") {
  CHECK(run_python(R"(
def lines():
    yield "Once"
    raise KeyError("mine")
try:
    list(llm_batch.run(model, lines(), max_tokens=2))
except KeyError as error:
    assert error.args == ("mine",)
else:
    raise SystemExit("no exception")
for arguments, flags in [((model, "a prompt"), {}), ((model,), {}), ((model, ["a"]), {"files": ["b"]})]:
    try:
        llm_batch.run(*arguments, **flags)
    except (TypeError, ValueError):
        continue
    raise SystemExit(repr(arguments))
)") == "");
}

TEST_CASE("close() ends the program, also while lines are still being written") {
  CHECK(run_python(R"(
def endless():
    while True:
        yield "Once upon a time"
with llm_batch.run(model, endless(), max_tokens=2) as job:
    assert next(job)["usage"]["completion_tokens"] == 2
    process = job._job._process
assert process.poll() is not None and list(job) == []
started = llm_batch.run(model, endless())
process = started._job._process
del started
assert process.poll() is not None
)") == "");
}

TEST_CASE("with output the job is durable: the same call continues it and yields all of its records") {
  CHECK(run_python(R"(
with open(dir + "/in.jsonl", "w") as file:
    file.write('{"prompt": "Once"}\n{"prompt": "Twice"}\n')
def job():
    return llm_batch.run(model, files=[dir + "/in.jsonl"], output=dir + "/out.jsonl", max_tokens=2)
first = job()
records = list(first)
again = job()
assert len(records) == 2 and list(again) == records
assert first.summary["skipped"] == 0 and again.summary["skipped"] == 2, again.summary
)") == "");
}

TEST_CASE("python -m llm_batch is the program") {
  if (!has_program("python3")) return skip("no python3");
  const std::string python = "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + source_dir() + "/tools/package LLM_BATCH=" + kProgram +
                             " python3 -m llm_batch ";
  CHECK(run_shell(python + "--version").out == run_process({kProgram, "--version"}).out);
  CHECK(run_shell(python + "-m no-such-model < /dev/null").exit_code == 4);
}

}  // namespace llmb::test
