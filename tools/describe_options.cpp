// Prints the completions of a shell, made from the table of options that --help prints, or the manual page, whose sections
// behind the options come from tools/package/manual.md.
//   describe_options bash|zsh|fish
//   describe_options man MANUAL.md
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "tools/package/man_text.h"

namespace llmb {
namespace {

enum class ValueKind { kNone, kOptional, kChoice, kFile, kOther };

// One row of the table. `value` and `default_value` are the two parts of the text that --help shows: "N [64]".
struct Flag {
  std::string group, short_name, name, description;  // names without dashes
  std::string value, default_value;
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices;
  bool is_required = false, is_repeatable = false;
};

std::string join(const std::vector<std::string>& words, const std::string& separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// "auto|cpu|cuda[:N]" is a choice of auto, cpu and cuda; a word in capitals stands for a value that is not listed.
std::vector<std::string> find_choices(const std::string& value) {
  static const std::regex kChoice(R"(([a-z0-9_-]+)(\[[^\]]*\])?)");
  std::vector<std::string> choices;
  std::stringstream alternatives(value);
  for (std::string alternative; std::getline(alternatives, alternative, '|');) {
    std::smatch match;
    if (!std::regex_match(alternative, match, kChoice)) return {};
    choices.push_back(match[1]);
  }
  return choices;
}

Flag read_flag(const CLI::Option& option) {
  static const std::regex kText(R"((.*?)( REQUIRED)?( \[(.*)\])?)");
  Flag flag{.group = option.get_group(), .name = option.get_lnames().at(0), .description = option.get_description()};
  if (!option.get_snames().empty()) flag.short_name = option.get_snames()[0];
  const std::string text = option.get_option_text();
  std::smatch match;
  std::regex_match(text, match, kText);
  flag.value = match[1];
  flag.is_required = match[2].matched;
  flag.default_value = match[4];
  flag.is_repeatable = option.get_expected_max() > 1;
  flag.choices = find_choices(flag.value);
  if (option.get_expected_max() == 0) flag.kind = flag.value.empty() ? ValueKind::kNone : ValueKind::kOptional;
  else if (!flag.choices.empty()) flag.kind = ValueKind::kChoice;
  else if (std::regex_search(flag.value, std::regex(R"((^|\|)(FILE|DIR))"))) flag.kind = ValueKind::kFile;
  else flag.kind = ValueKind::kOther;
  return flag;
}

std::vector<Flag> read_table(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_positional() && !option->get_group().empty()) flags.push_back(read_flag(*option));
  return flags;
}

// ---- the manual page ---------------------------------------------------------------------------------------------------

// The text between two marks; from the start without `begin`, to the end without `end`.
std::string section(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t from = begin.empty() ? 0 : text.find(begin) + begin.size();
  return text.substr(from, end.empty() ? std::string::npos : text.find(end, from) - from);
}

std::string man_option(const Flag& flag) {
  std::string out = ".TP\n" + (flag.short_name.empty() ? "" : bold("-" + flag.short_name) + ", ") + bold("--" + flag.name);
  if (flag.kind == ValueKind::kOptional) out += italic(flag.value);
  else if (!flag.value.empty()) out += " " + italic(flag.value);
  out += "\n" + roff(flag.description) + ".";
  if (flag.is_required) out += "\nRequired.";
  if (!flag.default_value.empty()) out += "\nDefault: " + roff(flag.default_value) + ".";
  return out + "\n";
}

std::string man_page(const CLI::App& app, const std::vector<Flag>& flags, const std::string& manual) {
  const std::string description = app.get_description(), footer = app.get_footer();
  const std::string what = section(description, "", ".\n");
  std::string out = ".TH LLM\\-BATCH 1 \"\" \"llm\\-batch " + roff(kVersion) + "\" \"User Commands\"\n";
  out += ".SH NAME\nllm\\-batch \\- " + roff(section(what, "llm-batch ", "")) + "\n";
  out += ".SH SYNOPSIS\n" + bold("llm-batch -m") + " " + italic("MODEL") + " [" + italic("OPTION") + "]... [" +
         italic("FILE") + "]...\n";
  for (const CommandText& c : command_texts())
    out += ".br\n" + bold("llm-batch " + c.name) + " " + roff(c.synopsis) + "\n";
  out += ".SH DESCRIPTION\n" + roff(what) + ".\n.PP\n.EX\n" + roff(section(description, ".\n\n", "")) + ".EE\n";
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) out += ".TP\n" + italic("FILE") + "\n" + roff(option->get_description()) + ".\n";
  out += ".SH COMMANDS\nThe first argument may name one; a file of that name is given as " + bold("./" + command_texts()[0].name) + ".\n";
  for (const CommandText& c : command_texts()) out += ".TP\n" + bold(c.name) + "\n" + roff(c.description) + ".\n";
  out += ".SH OPTIONS\n";
  std::string group;
  for (const Flag& flag : flags) {
    if (flag.group != group && flag.group != "Options") out += ".SS " + roff(flag.group) + "\n";
    group = flag.group;
    out += man_option(flag);
  }
  return out + ".SH EXIT STATUS\n" + roff(section(footer, "Exit codes: ", "")) + "\n" + man_sections(manual);
}

// ---- completions -------------------------------------------------------------------------------------------------------

std::vector<std::string> spellings(const Flag& flag) {
  if (flag.short_name.empty()) return {"--" + flag.name};
  return {"-" + flag.short_name, "--" + flag.name};
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandText& c : command_texts()) names.push_back(c.name);
  return names;
}

std::string bash_completions(const std::vector<Flag>& flags) {
  std::map<ValueKind, std::vector<std::string>> names;  // as patterns
  std::vector<std::string> all;
  std::string choices;
  for (const Flag& flag : flags) {
    const std::string pattern = join(spellings(flag), "|");
    names[flag.kind].push_back(pattern);
    for (const std::string& name : spellings(flag)) all.push_back(name);
    if (flag.kind == ValueKind::kChoice) choices += "    " + pattern + ") words='" + join(flag.choices, " ") + "' ;;\n";
  }
  return "# Completions of llm-batch for bash.\n"
         "_llm_batch() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=''\n"
         "  # --flag=value is three words here.\n"
         "  if [ \"$cur\" = = ]; then cur=''; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "  COMPREPLY=()\n"
         "  case $prev in\n" +
         choices + "    " + join(names[ValueKind::kOther], "|") +
         ") return ;;\n"
         "    " +
         join(names[ValueKind::kFile], "|") +
         ") ;;\n"
         "    *) case $cur in -*) words='" +
         join(all, " ") +
         "' ;; esac ;;\n"
         "  esac\n"
         "  if [ \"$COMP_CWORD\" = 1 ] && [ -z \"$words\" ]; then\n"
         "    compopt -o filenames 2> /dev/null\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         join(command_names(), " ") +
         "' -- \"$cur\"; compgen -f -- \"$cur\")\n"
         "  elif [ -n \"$words\" ]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
         "  else\n"
         "    compopt -o filenames 2> /dev/null\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
         "  fi\n"
         "}\n"
         "complete -F _llm_batch llm-batch\n";
}

std::string zsh_value(const Flag& flag) {
  const std::string message = ":" + replace_all(flag.value, ":", "\\:") + ":";
  switch (flag.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kOptional:
      return ":" + message;
    case ValueKind::kChoice:
      return message + "(" + join(flag.choices, " ") + ")";
    case ValueKind::kFile:
      return message + "_files";
    default:
      return message + " ";
  }
}

std::string zsh_completions(const std::vector<Flag>& flags) {
  const auto quote = [](const std::string& text) { return "'" + replace_all(text, "'", "'\\''") + "'"; };
  std::string out = "#compdef llm-batch\n# Completions of llm-batch for zsh.\n_llm_batch_first() { compadd " +
                    join(command_names(), " ") + "; _files }\n_arguments -s -S";
  for (const Flag& flag : flags) {
    std::string description = flag.description;
    for (const char* special : {"\\", "[", "]", ":"}) description = replace_all(description, special, std::string("\\") + special);
    const bool takes_value = flag.kind != ValueKind::kNone;
    const std::string name = "--" + flag.name + (flag.kind == ValueKind::kOptional ? "=-" : takes_value ? "=" : "");
    const std::string rest = quote("[" + description + "]" + zsh_value(flag));
    out += " \\\n  ";
    if (flag.is_repeatable) out += "'*'";
    else if (!flag.short_name.empty()) out += "'(" + join(spellings(flag), " ") + ")'";
    out += (flag.short_name.empty() ? name : "{-" + flag.short_name + "," + name + "}") + rest;
  }
  return out + " \\\n  '1:FILE or command:_llm_batch_first' \\\n  '*:FILE:_files'\n";
}

std::string fish_completions(const std::vector<Flag>& flags) {
  std::string out = "# Completions of llm-batch for fish.\n";
  for (const CommandText& c : command_texts())
    out += "complete -c llm-batch -n __fish_use_subcommand -a " + c.name + " -d '" + c.description + "'\n";
  for (const Flag& flag : flags) {
    out += "complete -c llm-batch";
    if (!flag.short_name.empty()) out += " -s " + flag.short_name;
    out += " -l " + flag.name;
    if (flag.kind == ValueKind::kFile) out += " -r -F";
    if (flag.kind == ValueKind::kOther) out += " -x";
    if (flag.kind == ValueKind::kChoice) out += " -x -a '" + join(flag.choices, " ") + "'";
    out += " -d '" + replace_all(replace_all(flag.description, "\\", "\\\\"), "'", "\\'") + "'\n";
  }
  return out;
}

}  // namespace
}  // namespace llmb

int main(int argc, char** argv) {
  const std::map<std::string, std::string (*)(const std::vector<llmb::Flag>&)> shells = {
      {"bash", llmb::bash_completions}, {"zsh", llmb::zsh_completions}, {"fish", llmb::fish_completions}};
  const auto shell = shells.find(argc == 2 ? argv[1] : "");
  const bool is_man = argc == 3 && std::string(argv[1]) == "man";
  std::stringstream manual;
  if (is_man) manual << std::ifstream(argv[2]).rdbuf();
  if (is_man ? manual.str().find("\n## ") == std::string::npos : shell == shells.end()) {
    std::fprintf(stderr, "usage: describe_options bash|zsh|fish, or describe_options man MANUAL.md\n");
    return 2;
  }
  llmb::Options options;
  const auto app = llmb::make_command_line(options);
  const std::vector<llmb::Flag> flags = llmb::read_table(*app);
  const std::string text = is_man ? llmb::man_page(*app, flags, manual.str()) : shell->second(flags);
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0 ? 0 : 1;
}
