// Token ids of texts, for comparing tokenizers: JSON strings on stdin, one per line, give JSON arrays of ids on stdout.
//   tokenize MODEL_DIR [--no-special] [--decode [--skip-special]]
// With --decode the lines are arrays of ids and give JSON strings; {"context": ids, "ids": ids} gives the text of the
// latter where it follows the former.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <string>

#include "base/log.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace {

std::string decode_after(const llmb::Tokenizer& tokenizer, const nlohmann::json& line, bool skip_special) {
  const auto context = line.at("context").get<std::vector<llmb::TokenId>>();
  llmb::Detokenizer detokenizer(tokenizer, skip_special, context);
  std::string text;
  for (const auto& id : line.at("ids")) text += detokenizer.push(id.get<llmb::TokenId>());
  return text + detokenizer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("token ids of JSON strings on stdin");
  std::string model_dir;
  bool no_special = false, decode = false, skip_special = false;
  app.add_option("model_dir", model_dir)->required();
  app.add_flag("--no-special", no_special, "leave out what the post-processor adds");
  app.add_flag("--decode", decode, "lines are arrays of ids");
  app.add_flag("--skip-special", skip_special, "with --decode: leave out special tokens");
  CLI11_PARSE(app, argc, argv);

  const auto tokenizer = llmb::Tokenizer::load(model_dir);
  if (!tokenizer.ok()) {
    llmb::log_error(tokenizer.status().message());
    return 4;
  }
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (decode && value.is_array()) {
      std::cout << nlohmann::json((*tokenizer)->decode(value.get<std::vector<llmb::TokenId>>(), skip_special)).dump()
                << '\n';
    } else if (decode && value.is_object()) {
      std::cout << nlohmann::json(decode_after(**tokenizer, value, skip_special)).dump() << '\n';
    } else if (!decode && value.is_string()) {
      std::cout << nlohmann::json((*tokenizer)->encode(value.get<std::string>(), !no_special)).dump() << '\n';
    } else {
      llmb::log_error("a line is not of the expected kind");
      return 5;
    }
  }
  return 0;
}
