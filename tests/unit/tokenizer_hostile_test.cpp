// Tokenizer files and texts that mean harm: refused with a message that names the fault, or handled in bounded work.
#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "base/utf8.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tokenizer_fixtures.h"

namespace llmb {

namespace {

using nlohmann::json;

const std::string kDir = test::source_dir() + "/data/fixtures/tokenizers/";

// A valid file to damage.
json base_file() {
  return {{"version", "1.0"},
          {"added_tokens", json::array({{{"id", 5}, {"content", "<s>"}, {"special", true}, {"normalized", false}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Whitespace"}}},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"vocab", {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"aba", 4}}},
            {"merges", {"a b", "ab a"}}}}};
}

Result<std::unique_ptr<Tokenizer>> load_text(const std::string& text) {
  const test::TempDir dir;
  write_file(dir / "tokenizer.json", text);
  return Tokenizer::load(dir.path());
}

// Loading has to fail with a message that holds `expected`.
void check_refused(const std::string& text, const std::string& expected) {
  const auto tokenizer = load_text(text);
  CAPTURE(text.substr(0, 300));
  REQUIRE_FALSE(tokenizer.ok());
  CAPTURE(tokenizer.status().message());
  CHECK(tokenizer.status().message().find(expected) != std::string::npos);
}

void check_refused(const json& file, const std::string& expected) { check_refused(file.dump(), expected); }
void check_refused(const char* text, const std::string& expected) { check_refused(std::string(text), expected); }

// base_file() with the vocabulary's JSON text given, so that keys may repeat.
std::string with_vocab(const std::string& vocab) {
  json file = base_file();
  file["model"]["vocab"] = "VOCAB";
  file["model"]["merges"] = json::array();
  file["added_tokens"] = json::array();
  std::string text = file.dump();
  return text.replace(text.find("\"VOCAB\""), 7, vocab);
}

json with_model(const char* key, const json& value) {
  json file = base_file();
  file["model"][key] = value;
  return file;
}

std::string repeat(const std::string& unit, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += unit;
  return out;
}

}  // namespace

TEST_CASE("the file that the others damage is a good one") {
  const auto tokenizer = load_text(base_file().dump());
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  CHECK((*tokenizer)->encode("aba b <s>x", false) == std::vector<TokenId>{4, 2, 5, 0});
  CHECK((*tokenizer)->vocab_size() == 6);
}

TEST_CASE("vocabularies with repeated entries, repeated ids, gaps or absurd ids are refused") {
  check_refused(with_vocab(R"({"a":0,"b":1,"a":2})"), "\"a\" is given twice");
  check_refused(with_vocab(R"({"a":0,"b":0})"), "id 0, which is taken already");
  check_refused(with_vocab(R"({"a":0,"b":2})"), "no token has id 1");
  check_refused(with_vocab(R"({"a":0,"b":-1})"), "has id -1");
  check_refused(with_vocab(R"({"a":0,"b":2147483648})"), "has id 2147483648");
  check_refused(with_vocab(R"({"a":0,"b":18446744073709551615})"), "has id");
  check_refused(with_vocab(R"({"a":0,"b":1.5})"), "not an integer");
  check_refused(with_vocab(R"({"a":0,"b":"1"})"), "model.vocab has an unexpected value");
  check_refused(with_vocab(R"({"a":0,"b":{"c":1}})"), "model.vocab");
  check_refused(with_vocab("{}"), "vocabulary is empty");
  check_refused(with_vocab("{\"" + repeat("a", 20000) + "\":0}"), "20000 bytes");
}

TEST_CASE("merges that are no pairs, miss an entry or lead nowhere are refused") {
  check_refused(with_model("merges", {"ab"}), "no space");
  check_refused(with_model("merges", {" a"}), "empty part");
  check_refused(with_model("merges", {"a "}), "empty part");
  check_refused(with_model("merges", {"a b c"}), "not two entries");
  check_refused(with_model("merges", {"a x"}), "is not in the vocabulary");
  check_refused(with_model("merges", {"b a"}), "the result of merge 0");
  check_refused(with_model("merges", {{"a", "b", "a"}}), "unexpected value");
  check_refused(with_model("merges", {{"a"}}), "not two values");
  check_refused(with_model("merges", {1}), "unexpected value");
  check_refused(with_model("merges", json::array({json::array({json::array({"a", "b"})})})), "model.merges");
  json cyclic = base_file();
  cyclic["model"]["continuing_subword_prefix"] = "##";
  cyclic["model"]["vocab"]["##"] = 5;
  cyclic["model"]["merges"] = {"a ##"};
  cyclic["added_tokens"] = json::array();
  check_refused(cyclic, "results in its own part");
}

TEST_CASE("components that are not built are refused by name") {
  for (const char* kind : {"normalizer", "pre_tokenizer", "decoder", "post_processor"}) {
    json file = base_file();
    file[kind] = {{"type", "Frobnicate"}};
    check_refused(file, std::string(kind) + " \"Frobnicate\" is not supported");
  }
  check_refused(with_model("type", "Markov"), "model \"Markov\" is not supported");
}

TEST_CASE("patterns that do not compile or can take exponential time are refused") {
  const auto with_pattern = [](const std::string& pattern) {
    json file = base_file();
    file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    return file;
  };
  for (const char* pattern :
       {"(a+)+", "(a*)*b", "((a+))+$", "(?:x?a+)*y", "(a|b+)+", "([a-z]+)*", "(?:(?:a+)?)+", "\\p{L}{1,}+"}) {
    check_refused(with_pattern(pattern), "exponential");
  }
  for (const char* pattern :
       {"(", ")", "[a", "a)", "(?<=a+)b", "\\", "\\p{Klingon}", "[z-a]", "(?<n", "\\1", "*a", "\\x{110000}"}) {
    CAPTURE(pattern);
    check_refused(with_pattern(pattern), "pattern");
  }
  check_refused(with_pattern(repeat("a", 100000)), "too long");
  check_refused(with_pattern(repeat("(", 1000)), "pattern");
  check_refused(with_pattern(repeat("[", 1000)), "pattern");
}

TEST_CASE("documents that are deep, huge, cut or not JSON are refused") {
  check_refused("", "JSON");
  check_refused("null", "expected a JSON object");
  check_refused("[]", "expected a JSON object");
  check_refused("{}", "model");
  check_refused(repeat("[", 100000), "nested too deeply");
  check_refused("{\"model\":{\"vocab\":" + repeat("[", 100000), "");
  check_refused("{\"model\":{},\"x\":[" + repeat("0,", 400'000) + "0]}", "too many values");
  check_refused("{\"model\":{},\"x\":\"" + repeat("a", (8 << 20) + 1) + "\"}", "8 MiB");
  check_refused("{\"model\":{},\"model\":{}}", "is given twice");
  check_refused("{\"model\":\"\xff\"}", "JSON");
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  json file = base_file();
  file["normalizer"] = nested;
  check_refused(file, "nest");
  const std::string good = base_file().dump();
  for (size_t size = 0; size < good.size(); ++size) CHECK_FALSE(load_text(good.substr(0, size)).ok());
}

TEST_CASE("damaged settings of components are refused") {
  const auto with = [](const char* kind, const json& spec) {
    json file = base_file();
    file[kind] = spec;
    return file;
  };
  check_refused(with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "!!"}}), "base64");
  check_refused(with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}), "damaged");
  check_refused(with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}), "damaged");
  check_refused(with("normalizer", 7), "not an object");
  check_refused(with("pre_tokenizer", {{"type", "ByteLevel"}, {"use_regex", 1}}), "use_regex");
  check_refused(with("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}), "length");
  check_refused(with("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}), "replacement");
  const json piece = {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}},
             text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  for (const int64_t id : {int64_t{-1}, int64_t{6}, int64_t{1} << 40}) {
    check_refused(
        with("post_processor",
             {{"type", "TemplateProcessing"}, {"single", {piece, text}}, {"special_tokens", {{"x", {{"ids", {id}}}}}}}),
        "not in the vocabulary");
  }
  check_refused(with("post_processor",
                     {{"type", "TemplateProcessing"}, {"single", {piece, text}}, {"special_tokens", json::object()}}),
                "no ids");
  check_refused(with("added_tokens", {{{"id", 7}, {"content", "<x>"}}}), "gap");
  check_refused(with("added_tokens", {{{"id", 5}, {"content", repeat("x", 2000)}}}), "longer");
  check_refused(with("added_tokens", {1}), "added_tokens");
  check_refused(with("added_tokens", {{"content", 1}}), "added_tokens");
  check_refused(with("added_tokens", json::parse("[[{}]]")), "added_tokens");
}

TEST_CASE("a unigram vocabulary with bad scores or a bad unk_id is refused") {
  const auto with = [](const std::string& vocab, int64_t unk) {
    json file = base_file();
    file["model"] = {{"type", "Unigram"}, {"unk_id", unk}, {"vocab", "VOCAB"}};
    file["added_tokens"] = json::array();
    std::string text_form = file.dump();
    return text_form.replace(text_form.find("\"VOCAB\""), 7, vocab);
  };
  CHECK(load_text(with(R"([["<unk>",0],["a",-1.5]])", 0)).ok());
  check_refused(with(R"([["<unk>",0],["a",1e999]])", 0), "");
  check_refused(with(R"([["<unk>",0],["a"]])", 0), "not two values");
  check_refused(with(R"([["<unk>",0],["a",0,0]])", 0), "unexpected value");
  check_refused(with(R"([["<unk>",0],["<unk>",0]])", 0), "is given twice");
  check_refused(with(R"([["<unk>",0]])", 1), "unk_id");
  check_refused(with(R"({"a":0})", 0), "no scores");
}

TEST_CASE("random damage to a file is refused or gives a tokenizer that keeps its promises") {
  std::mt19937 rng(5);
  for (const char* name : {"llama3", "llama2", "unigram", "bert"}) {
    std::ostringstream content;
    content << std::ifstream(kDir + name + "/tokenizer.json", std::ios::binary).rdbuf();
    const std::string good = content.str();
    for (int trial = 0; trial < 120; ++trial) {
      std::string bad = good;
      for (int i = 0; i < 1 + trial % 3; ++i) bad[rng() % bad.size()] = static_cast<char>(rng() % 128);
      const auto tokenizer = load_text(bad);
      if (!tokenizer.ok()) continue;
      const auto ids = (*tokenizer)->encode("The quick 日本語 12 <s> don't\n", true);
      for (const TokenId id : ids) CHECK((id >= 0 && id < (*tokenizer)->vocab_size()));
      CHECK(is_valid_utf8((*tokenizer)->decode(ids, false)));
      CHECK(decode_in_steps(**tokenizer, ids, true) == (*tokenizer)->decode(ids, true));
    }
  }
}

TEST_CASE("random character maps never read outside themselves and give valid UTF-8") {
  std::mt19937 rng(6);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int trial = 0; trial < 100; ++trial) {
    std::string map = trial % 2 == 0 ? "AAQAAA" : "wAAAAA";  // 1,024 or 192 bytes of trie
    for (int i = 0; i < 1500; ++i) map += trial % 4 < 2 ? kDigits[rng() % 64] : kDigits[rng() % 4];
    map += "AAAA";
    json file = base_file();
    file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", map}};
    const auto tokenizer = load_text(file.dump());
    if (!tokenizer.ok()) continue;
    for (int c = 1; c < 0x800; ++c) {
      std::string text;
      append_utf8(&text, static_cast<char32_t>(c));
      (*tokenizer)->encode(text + "a\u0301", false);
    }
  }
}

TEST_CASE("a directory without tokenizer files is named, with what it lacks") {
  const test::TempDir dir;
  const auto tokenizer = Tokenizer::load(dir.path());
  REQUIRE_FALSE(tokenizer.ok());
  CHECK(tokenizer.status().code() == StatusCode::kNotFound);
  CHECK(tokenizer.status().message().find(dir.path()) != std::string::npos);
  CHECK(tokenizer.status().message().find("tokenizer.json") != std::string::npos);
  CHECK_FALSE(Tokenizer::load(dir / "nowhere").ok());
}

TEST_CASE("1 MiB of one thing gives Hugging Face's ids") {
  for (const auto& row : read_jsonl(kDir + "long.jsonl")) {
    const auto tokenizer = load_tokenizer(kDir + row["tokenizer"].get<std::string>());
    const auto unit = row["unit"].get<std::string>();
    CAPTURE(row.dump());
    const auto ids = tokenizer->encode(repeat(unit, (size_t{1} << 20) / unit.size()), false);
    CHECK(ids.size() == row["num_ids"].get<size_t>());
    uint64_t hash = 14695981039346656037u;
    for (const TokenId id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 1099511628211u;
    CHECK(hash == std::stoull(row["fnv1a"].get<std::string>(), nullptr, 16));
  }
}

TEST_CASE("a pattern that backtracks without end stops at its step limit") {
  json file = base_file();
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)*x"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = load_text(file.dump());
  REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  CHECK((*tokenizer)->encode(repeat("a", 100), false) == std::vector<TokenId>(100, 1));
}

TEST_CASE("text that is not valid UTF-8 is read with replacement characters") {
  const auto tokenizer = load_tokenizer(kDir + "llama3");
  CHECK(tokenizer->encode("a\xff"
                          "b\xc3",
                          false) == tokenizer->encode("a\uFFFD"
                                                      "b\uFFFD",
                                                      false));
  CHECK(tokenizer->encode(std::string("a\0b", 3), false).size() == 3);
}

}  // namespace llmb
