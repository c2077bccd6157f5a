// --help, the manual page and the completions of three shells say the same about the same flags.
#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "tests/e2e/has_program.h"
#include "tests/support/process.h"
#include "tests/support/source_dir.h"

namespace llmb::test {

namespace {

const std::string kTool = binary_dir() + "/tools/describe_options";

std::string describe(const std::string& form) {
  std::vector<std::string> argv = {kTool, form};
  if (form == "man") argv.push_back(source_dir() + "/tools/package/manual.md");
  const ProcessResult result = run_process(argv);
  CHECK(result.exit_code == 0);
  return result.out;
}

// The first group of every match.
std::set<std::string> find_all(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) found.insert((*it)[1]);
  return found;
}

// The names in the table of options, without those that it hides.
std::set<std::string> listed_flags() {
  Options options;
  const auto app = make_command_line(options);
  std::set<std::string> names;
  for (const CLI::Option* option : app->get_options())
    if (!option->get_positional() && !option->get_group().empty()) names.insert(option->get_lnames().at(0));
  return names;
}

// A manual page without its markup, in one line.
std::string plain_text(std::string page) {
  for (const auto& [from, to] : {std::pair{R"(\\f[BIR])", ""},
                                 {R"(\\\(aq)", "'"},
                                 {R"(\\e)", "\\"},
                                 {R"(\\&)", ""},
                                 {R"(\\-)", "-"},
                                 {"\n", " "}})
    page = std::regex_replace(page, std::regex(from), to);
  return page;
}

// Candidates that bash offers for the last word.
std::set<std::string> complete_in_bash(const std::string& words) {
  const TemporaryDirectory dir;
  write_file(dir.file("llm-batch.bash"), describe("bash"));
  write_file(dir.file("prompts one.jsonl"), "");
  const std::string script = "cd " + dir.path() + "; . ./llm-batch.bash; COMP_WORDS=(" + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _llm_batch; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const ProcessResult result = run_process({"bash", "-c", script});
  CHECK(result.err == "");
  return find_all(result.out, "([^\n]+)\n");
}

// So in zsh, for each of `lines`: in a terminal of its own, where every candidate that is offered is printed.
std::vector<std::set<std::string>> complete_in_zsh(const std::vector<std::string>& lines) {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("functions"));
  write_file(dir.file("functions/_llm-batch"), describe("zsh"));
  write_file(dir.file("prompts one.jsonl"), "");
  write_file(dir.file("complete"), R"zsh(
zmodload zsh/zpty
zpty -b shell "COLUMNS=2000 LINES=500 zsh -f -i"
zpty -w shell "PS1= PROMPT=; fpath=($PWD/functions \$fpath); autoload -Uz compinit; compinit -D -u; LISTMAX=100000"
# Calls that only fill arrays are left as they are.
zpty -w shell 'compadd() {
  local -a offered
  if [[ " ${(j: :)${(@)argv[1,(i)(-|--)]}} " != *\ -[[:alnum:]]#[OAD]* ]]; then
    builtin compadd -O offered "$@"
    print -l -- OFFERED:${^offered}
  fi
  builtin compadd "$@"
}'
zpty -w shell 'show() { _main_complete; print LAST; compstate[insert]=; compstate[list]=; }'
zpty -w shell 'zle -C show complete-word show; bindkey "^I" show; bindkey "^U" kill-whole-line; print IS-READY'
zpty -r -m shell text '*IS-READY*IS-READY*'
for line in $argv; do
  zpty -w -n shell $'\x15'"$line"$'\t'
  zpty -r -m shell text '*LAST*'
  print -r -- LINE
  print -r -- "$text" | tr -d '\r' | sed -n 's/.*OFFERED:\(.\)/\1/p'
done
)zsh");
  std::vector<std::string> argv = {"sh", "-c", "cd \"$0\" && exec timeout 300 zsh -f complete \"$@\"", dir.path()};
  argv.insert(argv.end(), lines.begin(), lines.end());
  const ProcessResult result = run_process(argv);
  CHECK(result.exit_code == 0);
  std::vector<std::set<std::string>> found;
  std::stringstream out(result.out);
  for (std::string word; std::getline(out, word);)
    if (word == "LINE") found.emplace_back();
    else found.at(found.size() - 1).insert(word);
  REQUIRE_MESSAGE(found.size() == lines.size(), result.out << result.err);
  return found;
}

std::vector<std::set<std::string>> complete_in_fish(const std::vector<std::string>& lines) {
  const TemporaryDirectory dir;
  write_file(dir.file("llm-batch.fish"), describe("fish"));
  write_file(dir.file("prompts one.jsonl"), "");
  std::vector<std::set<std::string>> found;
  for (const std::string& line : lines) {
    const std::string ask = "source llm-batch.fish; complete -C \"" + line + "\"";
    const ProcessResult result = run_shell("cd " + dir.path() + " && fish --no-config -c '" + ask + "'");
    CHECK(result.err == "");
    found.push_back(find_all(result.out, "([^\t\n]+)[^\n]*\n"));
  }
  return found;
}

std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  for (const std::string& choice : complete_in_bash("llm-batch --" + option.get_lnames().at(0) + " ''"))
    choices.push_back(choice);
  return choices;
}

bool is_accepted(const std::string& flag, const std::string& value) {
  const std::string argument = "--" + flag + "=" + value;
  const char* argv[] = {"llm-batch", "-m", "model", argument.c_str(), "--task=embed", "-o=out.npy"};
  return !parse_command_line(value == "npy" ? 6 : 4, argv).exit_code;  // rows of a .npy file are of that task
}

}  // namespace

TEST_CASE("--help, manual page and completions name the same flags, those of the table") {
  const std::set<std::string> table = listed_flags();
  CHECK(table.size() > 40);
  CHECK(find_all(run_process({binary_dir() + "/llm-batch", "--help"}).out, R"(\n  (?:-\w,)?--([a-z0-9-]+))") == table);
  CHECK(find_all(plain_text(describe("man")), R"(\.TP (?:-\w, )?--([a-z0-9-]+))") == table);
  CHECK(find_all(describe("zsh"), R"(\n  [^\[]*--([a-z0-9-]+)[^\[]*\[)") == table);
  CHECK(find_all(describe("fish"), R"(\ncomplete -c llm-batch(?: -s \w)? -l ([a-z0-9-]+) )") == table);
  std::set<std::string> in_bash;
  for (const std::string& name : complete_in_bash("llm-batch --")) in_bash.insert(name.substr(2));
  CHECK(in_bash == table);
}

TEST_CASE("--help, manual page and completions describe a flag in the same words") {
  Options options;
  const auto app = make_command_line(options);
  const std::string help = run_process({binary_dir() + "/llm-batch", "--help"}).out, man = plain_text(describe("man"));
  const std::string zsh = describe("zsh"), fish = describe("fish");
  const auto unescaped = [](const std::string& text, const std::string& quote) {
    return std::regex_replace(std::regex_replace(text, std::regex(quote), "'"), std::regex(R"(\\([\[\]:\\]))"), "$1");
  };
  const std::string zsh_text = unescaped(zsh, R"('\\'')"), fish_text = unescaped(fish, R"(\\')");
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const std::string description = option->get_description();
    INFO(description);
    CHECK(help.find(description) != std::string::npos);
    CHECK(man.find(description + ".") != std::string::npos);
    if (option->get_positional()) continue;
    CHECK(zsh_text.find("[" + description + "]") != std::string::npos);
    CHECK(fish_text.find("'" + description + "'") != std::string::npos);
  }
  for (const char* heading : {".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SS Model", ".SH EXIT STATUS 0 all",
                              ".SH INPUT", ".SS GGUF", ".SH ENVIRONMENT"})
    CHECK_MESSAGE(man.find(heading) != std::string::npos, heading);
}

TEST_CASE("the manual page has the headings, paragraphs, items, examples and words of Markdown") {
  const TemporaryDirectory dir;
  write_file(dir.file("manual.md"),
             "# Title\nleft out\n\n## A section\n\nOne `x.y|z` and\n**two**.\n\n### Part\n\n    .code 'a'\n\n- "
             "first\n- `b`, c\n\n"
             "| name | meaning | default |\n|---|---|---|\n| `a`, `b` | letters | 1 |\n| `c|d` | `e` | |\n");
  const std::string page = run_process({kTool, "man", dir.file("manual.md")}).out;
  CHECK(page.substr(page.find(".SH A SECTION")) ==
        ".SH A SECTION\n.PP\nOne \\fBx.y|z\\fR and\n\\fBtwo\\fR.\n.SS Part\n.PP\n.EX\n\\&.code \\(aqa\\(aq\n.EE\n"
        ".IP \\(bu 2\nfirst\n.IP \\(bu 2\n\\fBb\\fR, c\n"
        ".TP\n\\fBa\\fR, \\fBb\\fR\nLetters.\nDefault: 1.\n.TP\n\\fBc|d\\fR\n\\fBe\\fR.\n");
  CHECK(page.find("left out") == std::string::npos);
}

TEST_CASE("every value that a completion offers is accepted, and no other word") {
  Options options;
  const auto app = make_command_line(options);
  const std::string fish = describe("fish"), zsh = describe("zsh");
  int num_choices = 0;
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_positional() || option->get_option_text().find('|') == std::string::npos) continue;
    const std::string name = option->get_lnames().at(0);
    const std::vector<std::string> choices = choices_of(*option);
    if (choices == std::vector<std::string>{"llm-batch.bash", "prompts one.jsonl"}) continue;  // files
    INFO(name);
    REQUIRE(choices.size() > 1);
    num_choices++;
    for (const std::string& choice : choices) {
      CHECK_MESSAGE(is_accepted(name, choice), choice);
      CHECK(fish.find(choice, fish.find("-l " + name + " ")) < fish.find("' -d", fish.find("-l " + name + " ")));
      CHECK(zsh.find(choice, zsh.find("--" + name + "=")) != std::string::npos);
    }
    CHECK_FALSE(is_accepted(name, "no-such-value"));
  }
  CHECK(num_choices > 8);
}

TEST_CASE("--help, manual page and completions know the commands") {
  const std::string help = run_process({binary_dir() + "/llm-batch", "--help"}).out, man = plain_text(describe("man"));
  for (const CommandText& command : command_texts()) {
    CHECK(help.find("llm-batch " + command.name + " " + command.synopsis) != std::string::npos);
    CHECK(man.find(command.description) != std::string::npos);
    CHECK(describe("fish").find(" -a " + command.name + " ") != std::string::npos);
    CHECK(describe("zsh").find("compadd") != std::string::npos);
    CHECK(complete_in_bash("llm-batch " + command.name.substr(0, 3)) == std::set<std::string>{command.name});
  }
}

TEST_CASE("bash completes flags, values and files") {
  CHECK(complete_in_bash("llm-batch --ord") == std::set<std::string>{"--order"});
  CHECK(complete_in_bash("llm-batch --order i") == std::set<std::string>{"input"});
  CHECK(complete_in_bash("llm-batch --order =") == std::set<std::string>{"completion", "input"});
  CHECK(complete_in_bash("llm-batch --order = c") == std::set<std::string>{"completion"});
  CHECK(complete_in_bash("llm-batch -m model pro") == std::set<std::string>{"prompts one.jsonl"});
  CHECK(complete_in_bash("llm-batch -m pro") == std::set<std::string>{"prompts one.jsonl"});
  CHECK(complete_in_bash("llm-batch --max-tokens ''").empty());
}

TEST_CASE("zsh and fish complete flags, values, files and commands") {
  using Words = std::set<std::string>;
  Words flags;
  for (const std::string& name : listed_flags()) flags.insert("--" + name);
  const std::vector<std::pair<std::string, Words>> cases = {{"--", flags},
                                                            {"--ord", {"--order"}},
                                                            {"--order ", {"completion", "input"}},
                                                            {"--order=i", {"input"}},
                                                            {"--schedule l", {"longest-first"}},
                                                            {"-m model pro", {"prompts one.jsonl"}},
                                                            {"-m pro", {"prompts one.jsonl"}},
                                                            {"re", {"report"}},
                                                            {"--max-tokens ", {}}};
  std::vector<std::string> lines;
  for (const auto& [words, expected] : cases) lines.push_back("llm-batch " + words);
  for (const char* shell : {"zsh", "fish"}) {
    if (!has_program(shell)) {
      MESSAGE(shell << " is not here");
      continue;
    }
    std::vector<Words> found = shell == std::string("zsh") ? complete_in_zsh(lines) : complete_in_fish(lines);
    for (size_t i = 0; i < cases.size(); ++i) {
      if (found[i] == Words{"--order=input"}) found[i] = {"input"};  // fish offers the whole word
      INFO(shell << ": " << lines[i]);
      CHECK(found[i] == cases[i].second);
    }
  }
}

TEST_CASE("the manual page and the completions are read without complaint by the programs that are here") {
  const TemporaryDirectory dir;
  for (const char* form : {"man", "bash", "zsh", "fish"}) write_file(dir.file(form), describe(form));
  CHECK(run_process({"bash", "-n", dir.file("bash")}).exit_code == 0);
  const auto is_quiet = [&](const std::string& program, const std::string& command) {
    if (!has_program(program)) {
      MESSAGE(program << " is not here");
      return;
    }
    const ProcessResult result = run_shell("cd " + dir.path() + " && " + command);
    CHECK(result.exit_code == 0);
    CHECK(result.err == "");
  };
  is_quiet("groff", "groff -Kutf8 -Tutf8 -man -wall -z man");
  is_quiet("zsh", "zsh -n zsh");
  is_quiet("fish", "fish --no-execute fish");
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"cmd"}, {}, {"man"}, {"man", dir.file("none")}, {"man", dir.file("fish")}}) {
    std::vector<std::string> argv = {kTool};
    argv.insert(argv.end(), wrong.begin(), wrong.end());
    CHECK(run_process(argv).exit_code == 2);
  }
}

}  // namespace llmb::test
