// README and the manual keep their word: their commands run, their links lead somewhere, their flags and fields exist.
#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <regex>
#include <set>

#include "cli/command_line.h"
#include "io/request_fields.h"
#include "tests/e2e/has_program.h"
#include "tests/e2e/run.h"
#include "tests/support/skip.h"

namespace llmb::test {

namespace {

std::string source_text(const std::string& path) { return read_file(source_dir() + "/" + path); }

// The first group of every match.
std::set<std::string> find_all(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

// The first indented block behind `heading`, as a script.
std::string code_behind(const std::string& text, const std::string& heading) {
  std::istringstream lines(text.substr(text.find(heading)));
  std::string code;
  for (std::string line; std::getline(lines, line) && (code.empty() || line.starts_with("    "));)
    if (line.starts_with("    ")) code += line.substr(4) + "\n";
  return code;
}

}  // namespace

TEST_CASE("the five uses of README run as they stand on the bundled model") {
  if (!has_program("jq")) return skip("no jq");
  const std::string uses = code_behind(source_text("README.md"), "\n## Five uses\n");
  CHECK(find_all(uses, R"(# (\d)\.)").size() == 5);
  const TemporaryDirectory dir;
  for (const char* folder : {"data", "examples"})
    std::filesystem::create_directory_symlink(source_dir() + "/" + folder, dir.file(folder));
  write_file(dir.file("uses"), "set -euo pipefail\nPATH=" + binary_dir() + ":$PATH\ncd " + dir.path() + "\n" + uses);
  const ProcessResult result = run_process({"bash", dir.file("uses")});
  INFO(result.err);
  CHECK(result.exit_code == 0);
  const std::string answers = read_file(dir.file("answers.jsonl"));
  CHECK(parse_lines(answers).size() == parse_lines(source_text("examples/prompts.jsonl")).size());
  CHECK(stable_output(read_file(dir.file("nightly-answers/prompts.jsonl"))) == stable_output(answers));
  for (const auto& record : parse_lines(read_file(dir.file("reviews.jsonl"))))
    CHECK_MESSAGE((record.contains("text") && record["input"].contains("id")), record.dump());
}

TEST_CASE("README is one page, and its targets and links lead somewhere") {
  const std::string readme = source_text("README.md");
  CHECK(std::count(readme.begin(), readme.end(), '\n') <= 110);
  for (const std::string& target : find_all(readme, R"((?:`|    )make\s+([a-z][a-z-]*))"))
    CHECK_MESSAGE(source_text("Makefile").find("\n" + target + ":") != std::string::npos, target);
  for (const std::string& link : find_all(readme, R"(\]\(([^)]+)\))"))
    CHECK_MESSAGE((link.starts_with("https://") || std::filesystem::exists(source_dir() + "/" + link)), link);
  for (const std::string& path : find_all(readme, R"(((?:examples|tools)/[\w./]+\w))"))
    CHECK_MESSAGE(std::filesystem::exists(source_dir() + "/" + path), path);
}

TEST_CASE("README's picture is what its tool draws from the measurements") {
  if (!has_program("python3")) return skip("no python3");
  const ProcessResult drawn = run_shell("cd " + source_dir() + " && tools/plot_peers.py " +
                                        "data/measurements/intel-xeon-emerald-rapids-2-cores.md");
  CHECK(drawn.exit_code == 0);
  CHECK(drawn.out == source_text("data/measurements/peers.svg"));
}

TEST_CASE("README and the manual name only flags that exist; the manual names every field of a line") {
  Options options;
  const auto app = make_command_line(options);
  std::set<std::string> flags = {"help"};
  for (const CLI::Option* option : app->get_options())
    for (const std::string& name : option->get_lnames()) flags.insert(name);
  const std::string manual = source_text("tools/package/manual.md");
  for (std::string text : {source_text("README.md"), manual}) {
    text =
        std::regex_replace(text, std::regex("cmake --build build --target|fits? `--memory"), "");  // of other programs
    for (const std::string& flag : find_all(text, R"([\s`(]--([a-z][a-z0-9-]*))"))
      CHECK_MESSAGE(flags.contains(flag), flag);
  }
  for (int field = 0; field < kNumFields; ++field) {
    const std::string name(field_name(static_cast<Field>(field)));
    CHECK_MESSAGE(manual.find("`" + name + "`") != std::string::npos, name);
  }
}

}  // namespace llmb::test
