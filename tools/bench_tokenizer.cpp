// Encoding and decoding speed on one thread, and the time that hostile text takes, all in processor time.
//   bench_tokenizer MODEL_DIR [FILE…]     # files of text; without any, text made from a fixed seed
// Repeat the comparison with Hugging Face tokenizers by tools/golden/compare_speed.py.
#include <CLI/CLI.hpp>

#include <time.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "tokenizer/tokenizer.h"

namespace {

using llmb::TokenId;

// Processor time, so that other work on the machine does not count.
double now_s() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

uint32_t random_below(uint32_t position, uint32_t limit) {
  return llmb::philox4x32({position, 0, 0, 0}, {1, 2})[0] % limit;
}

// Words of a fixed list in random order, about 4 MB.
std::string made_text() {
  const char* words[] = {"the",    "of",     "time", "people", "however,", "because",   "int",   "return",
                         "value;", "12",     "2024", "\n",     "which",    "Tokenizer", "naïve", "größer",
                         "日本語", "привет", "(x)",  "==",     "don't",    "state",     "of",    "and"};
  std::string text;
  for (uint32_t i = 0; text.size() < 4'000'000; ++i) {
    text += words[random_below(i, std::size(words))];
    text += ' ';
  }
  return text;
}

// Pieces of about 2,000 bytes, cut at line or word ends: what prompts look like.
std::vector<std::string> cut(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.size(), begin + 2000);
    while (end < text.size() && text[end] != ' ' && text[end] != '\n') ++end;
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

void bench_hostile(const llmb::Tokenizer& tokenizer) {
  const std::pair<const char*, const char*> units[] = {
      {"letters", "a"}, {"spaces", " "},         {"newlines", "\n"}, {"combining marks", "\u0301"},
      {"CJK", "中"},    {"digits", "1"},         {"ab", "ab"},       {"capitals", "A"},
      {"quotes", "'"},  {"space-newline", " \n"}};
  for (const auto& [name, unit] : units) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    const double start = now_s();
    const size_t num_ids = tokenizer.encode(text, false).size();
    std::printf("  1 MiB of %-16s %8zu ids  %7.3f s\n", name, num_ids, now_s() - start);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("encoding and decoding speed on one thread");
  std::string model_dir;
  std::vector<std::string> files;
  app.add_option("model_dir", model_dir)->required();
  app.add_option("files", files);
  CLI11_PARSE(app, argc, argv);

  const double load_start = now_s();
  const auto loaded = llmb::Tokenizer::load(model_dir);
  if (!loaded.ok()) {
    llmb::log_error(loaded.status().message());
    return 4;
  }
  const llmb::Tokenizer& tokenizer = **loaded;
  std::printf("load %.3f s, vocabulary %d\n", now_s() - load_start, tokenizer.vocab_size());

  std::string text;
  for (const std::string& path : files) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    text += content.str();
  }
  if (files.empty()) text = made_text();
  const std::vector<std::string> pieces = cut(text);

  double best_s = 1e9;
  std::vector<std::vector<TokenId>> ids(pieces.size());
  for (int round = 0; round < 3; ++round) {
    const double start = now_s();
    for (size_t i = 0; i < pieces.size(); ++i) ids[i] = tokenizer.encode(pieces[i], false);
    best_s = std::min(best_s, now_s() - start);
  }
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  size_t num_ids = 0;
  for (const auto& piece : ids) {
    num_ids += piece.size();
    for (const TokenId id : piece) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
  }
  std::printf("encode %.2f MB/s, %.2f M ids/s (%zu bytes, %zu ids, hash %016llx)\n", text.size() / best_s / 1e6,
              num_ids / best_s / 1e6, text.size(), num_ids, static_cast<unsigned long long>(hash));
  const double start = now_s();
  size_t num_bytes = 0;
  for (const auto& piece : ids) num_bytes += tokenizer.decode(piece, false).size();
  std::printf("decode %.2f MB/s (%zu bytes)\n", num_bytes / (now_s() - start) / 1e6, num_bytes);
  bench_hostile(tokenizer);
  return 0;
}
